"""`fpmdask records`: written and verified on the command line."""

import json
from pathlib import Path

from fpmdask.cli.records import write
from fpmdask.records import KINDS


def test_records_are_written_sorted_elsewhere_and_verified(fpm, tmp_path):
    folder = tmp_path / "in"
    options = ["--records", "1000", "--files", "3", "--kind", "ascii", "--seed", "2"]
    written = fpm("records", "write", folder, *options, "--json")
    said = json.loads(written.output)
    assert (said["records"], len(said["paths"])) == (1000, 3)
    again = fpm("records", "write", tmp_path / "again", *options)
    assert f"1000 records in 3 files, checksum {said['checksum']}" in again.output

    out = tmp_path / "out"
    out.mkdir()
    data = b"".join(Path(path).read_bytes() for path in said["paths"])
    rows = sorted(data[at : at + 100] for at in range(0, len(data), 100))
    (out / "part-00000").write_bytes(b"".join(rows))
    part = {
        "name": "part-00000",
        "records": 1000,
        "nbytes": 100_000,
        "checksum": said["checksum"],
        "first": rows[0][:10].hex(),
        "last": rows[-1][:10].hex(),
    }
    manifest = {
        "target": str(out),
        "records": 1000,
        "checksum": said["checksum"],
        "parts": [part],
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    found = fpm("records", "verify", out, "--records", "1000", "--checksum", said["checksum"])
    assert found.exit_code == 0
    assert "1000 records in 1 parts" in found.output
    assert "in order and complete" in found.output

    (out / "part-00000").write_bytes(b"".join(rows[::-1]))
    wrong = fpm("records", "verify", out)
    assert wrong.exit_code == 3
    assert "NOT right" in wrong.output
    answer = fpm("records", "verify", out, "--json")
    assert answer.exit_code == 3
    assert json.loads(answer.output)["ok"] is False


def test_every_kind_can_be_written():
    (choice,) = [option.type for option in write.params if option.name == "kind"]
    assert tuple(choice.choices) == KINDS


def test_bad_input_is_said_in_one_sentence(fpm, tmp_path):
    assert fpm("records", "write", tmp_path, "--records", "-1").exit_code == 1
    assert fpm("records", "write", tmp_path, "--records", "9", "--kind", "odd").exit_code == 2
    assert fpm("records", "verify", tmp_path, "--checksum", "xyz").exit_code == 2
    missing = fpm("records", "verify", tmp_path / "nothing")
    assert missing.exit_code == 1
    assert "no file matches" in missing.stderr
