"""Whose answers a request may know."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from adaspec.vllm.patching import SALT_ATTRIBUTE

NO_SALT_KNOWN = object()
"""Stands for the salt of a request whose scheduler does not tell it: its answer is not shared."""


def owner_key(new: Any) -> object:
    """What must be the same for a new request to know another's answer; None: it knows nobody's.

    That is a hash of its LoRA adapter and the `cache_salt` by which vLLM keeps prefix caches apart.
    """
    salt, adapter = getattr(new, SALT_ATTRIBUTE, NO_SALT_KNOWN), new.lora_request
    if salt is NO_SALT_KNOWN:
        return None
    both = json.dumps([salt, None if adapter is None else adapter.lora_name])
    return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()
