"""One engine step under a policy, whoever runs the requests, drafts and verifies."""
