"""Manifests that were written can be read, others are rejected by name; deletions keep what is needed."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_store.backups.backup_errors import BrokenBackupError
from epochmq_store.backups.backup_plan import abandoned_keys, common_pieces, expired, freed_keys, newest
from epochmq_store.backups.manifest import (
    BackedUpGroup,
    BackupManifest,
    LogPiece,
    StoredFile,
    encode_manifest,
    parse_manifest,
)

SEGMENT = 1000
DIGEST = "0" * 64


def name(number: int) -> str:
    return f"20300131T140000Z-{number:06x}"


def piece(start: int, end: int, owner: int = 0) -> LogPiece:
    return LogPiece(f"objects/{name(owner)}/log/{start:020}-{end:020}", start, end, DIGEST)


def manifest(
    number: int,
    pieces: tuple[LogPiece, ...],
    files: tuple[StoredFile, ...] = (),
    epochs: tuple[tuple[int, int], ...] = (),
) -> BackupManifest:
    return BackupManifest(
        id=name(number),
        product="1",
        taken_ms=number,
        lineage=name(0),
        group=BackedUpGroup("orders-a", "DefaultCluster", "Controller"),
        replica="orders-broker-0",
        segment_bytes=SEGMENT,
        log_start=pieces[0].start if pieces else 0,
        log_end=pieces[-1].end if pieces else 0,
        last_stored_ms=0,
        epochs=epochs,
        pieces=pieces,
        files=files,
    )


@st.composite
def manifests(draw: st.DrawFn) -> BackupManifest:
    ends = sorted(draw(st.sets(st.integers(1, 5 * SEGMENT), max_size=8)))
    ends = sorted({*ends, *(SEGMENT * at for at in range(1, (ends[-1] if ends else 0) // SEGMENT + 1))})
    pieces = tuple(piece(start, end) for start, end in zip([0, *ends], ends, strict=False))
    paths = draw(st.sets(st.text("abc/", min_size=1).filter(lambda one: "" not in one.split("/"))))
    stored = draw(st.integers(0, 100))
    files = tuple(
        StoredFile(path, f"objects/{name(0)}/files/{at:06}", stored, stored + 1, DIGEST)
        for at, path in enumerate(sorted(paths))
    )
    return manifest(draw(st.integers(0, 0xFFFFFF)), pieces, files)


@pytest.mark.long
@given(manifests())
def test_a_manifest_is_read_as_it_was_written(one: BackupManifest) -> None:
    assert parse_manifest(encode_manifest(one), "m") == one


@given(manifests(), st.data())
def test_a_torn_manifest_is_rejected(one: BackupManifest, data: st.DataObject) -> None:
    encoded = encode_manifest(one)
    torn = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    with pytest.raises(BrokenBackupError, match="m is no manifest"):
        parse_manifest(torn, "m")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_rejected(content: bytes) -> None:
    with pytest.raises(BrokenBackupError):
        parse_manifest(content, "m")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ),
    st.sampled_from([field.encode_name for field in msgspec.structs.fields(BackupManifest)]),
)
def test_any_value_of_a_field_is_taken_or_rejected(value: object, field: str) -> None:
    document = msgspec.to_builtins(manifest(1, (piece(0, 1000),)))
    document[field] = value
    with contextlib.suppress(BrokenBackupError):
        assert parse_manifest(msgspec.json.encode(document), "m").id


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"version": 2}, "version: 2, expected 1"),
        ({"id": "../x"}, "id: '../x'"),
        ({"pieces": (piece(0, 400), piece(500, 1000))}, "pieces: 0 to 400, then from 500"),
        ({"pieces": (piece(0, 1001),)}, "a range of one file of the log"),
        ({"pieces": ()}, "pieces: none"),
        ({"pieces": (piece(0, 900),)}, "expected 0 to 1000"),
        ({"segment_bytes": 0}, "segmentBytes: 0"),
        ({"files": (StoredFile("../x", f"objects/{name(0)}/files/0", 0, 0, DIGEST),)}, "files: path: '../x'"),
        ({"files": (StoredFile("/etc/x", f"objects/{name(0)}/files/0", 0, 0, DIGEST),)}, "files: path"),
        ({"files": (StoredFile("x", "objects/../../x", 0, 0, DIGEST),)}, "key: 'objects/../../x'"),
        ({"files": (StoredFile("x", f"objects/{name(0)}/files/0", 2, 1, DIGEST),)}, "stored: 2"),
    ],
)
def test_a_fault_is_named(changes: dict[str, object], fault: str) -> None:
    broken = msgspec.structs.replace(manifest(1, (piece(0, 1000),)), **changes)
    with pytest.raises(BrokenBackupError) as error:
        parse_manifest(encode_manifest(broken), "m")
    assert fault in str(error.value)


@given(st.lists(st.sets(st.integers(0, 9)), max_size=6), st.integers(1, 6))
def test_a_deletion_frees_exactly_what_no_kept_backup_needs(owned: list[set[int]], keep: int) -> None:
    found = [
        manifest(at, tuple(piece(n * 10, n * 10 + 10) for n in sorted(owns))) for at, owns in enumerate(owned)
    ]
    gone = expired(found, keep)
    kept = [one for one in found if one not in gone]
    assert len(kept) == min(keep, len(found))
    assert newest(found) in kept or not found
    freed = set(freed_keys(gone, kept))
    assert freed.isdisjoint({key for one in kept for key in one.keys})
    assert freed | {key for one in kept for key in one.keys} == {key for one in found for key in one.keys}


def test_objects_without_a_manifest_are_abandoned_after_a_day() -> None:
    mine = manifest(0, (piece(0, 10),))
    objects = {piece(0, 10).key: 0.0, piece(10, 20, 1).key: 0.0, piece(10, 20, 2).key: 86_000.0}
    assert abandoned_keys(objects, [mine], 90_000.0) == [piece(10, 20, 1).key]


def test_pieces_are_taken_over_from_the_same_history_only() -> None:
    pieces = (piece(0, 1000), piece(1000, 1500))
    parent = manifest(0, pieces, epochs=((1, 0), (3, 1200)))
    epochs = [(1, 0), (3, 1200), (4, 1800)]
    assert common_pieces(parent, SEGMENT, 0, 2000, epochs) == pieces
    assert common_pieces(parent, SEGMENT, 1000, 2000, epochs) == pieces[1:], "the first file has expired"
    assert common_pieces(parent, SEGMENT, 1000, 2000, [(1, 1000), (3, 1200)]) == pieces[1:]
    assert common_pieces(parent, SEGMENT, 0, 1499, epochs) == (), "the log has lost its end"
    assert common_pieces(parent, SEGMENT, 0, 2000, [(1, 0), (2, 1200)]) == ()
    assert common_pieces(parent, SEGMENT, 0, 2000, [(1, 0)]) == ()
    assert common_pieces(parent, 2 * SEGMENT, 0, 2000, epochs) == ()
    assert common_pieces(parent, SEGMENT, 2000, 3000, epochs) == (), "everything has expired"
