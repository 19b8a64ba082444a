import numpy as np
import pytest

torch = pytest.importorskip("torch")

from adaspec.vllm.choice import Target  # noqa: E402
from adaspec.vllm.options import Options  # noqa: E402
from adaspec.vllm.session.ring import ServedRing  # noqa: E402

TARGET = Target("made-up", 90, None, "", vocabulary_hash="a")


def answers_of(rng, count):
    return [rng.integers(0, 90, rng.integers(0, 60)).tolist() for _ in range(count)]


def test_what_the_host_searches_is_what_the_device_scans():
    rng, served = np.random.default_rng(0), ServedRing(Options(ring_tokens=1024), TARGET)
    served.take(answers_of(rng, 9))
    there = served.on_device(2, torch.device("cpu"))
    for _ in range(60):
        served.take(answers_of(rng, int(rng.integers(0, 9))))
        known = int(there.known)
        np.testing.assert_array_equal(there.tokens[:known], served.ring.tokens)
    assert served.ring.moves
    served.give_up()
    assert not there.known


def test_a_restarted_server_begins_with_what_was_searched_by_its_replica(tmp_path, caplog):
    options = Options(ring_tokens=1024, ring_file=str(tmp_path / "ring"), replica=1)
    served = ServedRing(options, TARGET)
    served.take(answers_of(np.random.default_rng(0), 99))
    served.take([[1, 2, 3]])
    served.close()
    assert [each.name for each in tmp_path.iterdir()] == ["ring-1"]
    again = ServedRing(options, TARGET)
    np.testing.assert_array_equal(again.ring.searched, served.ring.searched)
    assert not caplog.records
    (tmp_path / "ring-1").write_text("none")
    assert not len(ServedRing(options, TARGET).ring.tokens)
    assert "the ring begins empty" in caplog.text


def test_a_ring_that_cannot_be_written_is_said_and_does_no_harm(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    options = Options(ring_tokens=1024, ring_file=str(tmp_path / "file" / "ring"))
    served = ServedRing(options, TARGET)
    served.take([[1, 2, 3]])
    served.close()
    assert "the ring is not kept" in caplog.text
