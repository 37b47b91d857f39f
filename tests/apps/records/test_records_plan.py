"""What of a sort of records is decided without data."""

from itertools import permutations

from fpmdask.apps.records.plan import assigned, merged


def test_files_are_in_the_order_of_the_sources_whoever_finds_them_first():
    one, two, a = ("d/1", 100, "", 0), ("d/2", 200, "", 0), ("a", 300, "", 1)
    found = {"v": [two, a], "w": [one], "x": [one, a]}
    for workers in permutations(found):
        job, seen = merged({worker: found[worker] for worker in workers})
        assert [file.path for file in job.files] == ["d/1", "d/2", "a"]
        assert [sorted(each) for each in seen] == [["w", "x"], ["v"], ["v", "x"]]


def test_empty_parts_alone_go_to_anybody():
    found = assigned({3: 0, 5: 0}, {"a": 0, "b": 0})
    assert sorted(found["a"] + found["b"]) == [3, 5]
