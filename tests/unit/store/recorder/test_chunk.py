"""Chunks as bytes and back, and the resolution in which samples are kept."""

from io import BytesIO

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from chopperd.store.recorder.chunk import (
    SampleChunk,
    decoded_chunk,
    die_columns,
    encoded_chunk,
    in_stored_resolution,
    joined,
    merged,
)
from chopperd.store.recorder.codec import compressed
from chopperd.units import NS_PER_S, TimeTriple
from tests.fakes.recorded import origin, records_of, second_of_records, triples_every_second
from tests.fakes.samples import START_UNIX_NS, recording


def timed(*t_mono_ns: int) -> Records:
    records = np.zeros(len(t_mono_ns), RECORD)
    records["t_mono_ns"] = t_mono_ns
    records["die_clocks_mhz"] = NO_DIE
    return records


def hand_made() -> SampleChunk:
    """Both GPUs of a small recording, with NaN in most columns."""
    mono_ns = START_UNIX_NS - 5 * NS_PER_S
    return SampleChunk(
        origin=origin(),
        records={slot: records_of(gpu, mono_ns) for slot, gpu in enumerate(recording(2).gpus)},
        triples=tuple(triples_every_second(4 * NS_PER_S, 9 * NS_PER_S, mono_ns)),
        lost_count=3,
    )


def assert_same(mine: SampleChunk, other: SampleChunk) -> None:
    assert (mine.origin, mine.triples, mine.lost_count) == (
        other.origin,
        other.triples,
        other.lost_count,
    )
    assert mine.records.keys() == other.records.keys()
    for slot, records in mine.records.items():
        assert other.records[slot].dtype == RECORD
        # `late_ns`, `scope` and `sequence` are the sampler's own affair.
        for name in ("t_mono_ns", "span_ns", "causes", "sm_clock_mhz", "energy_j", "power_w"):
            np.testing.assert_array_equal(records[name], other.records[slot][name])
        for name in ("limited_ns", "die_clocks_mhz"):
            np.testing.assert_array_equal(records[name], other.records[slot][name])


@pytest.mark.parametrize("quick", [False, True])
def test_a_chunk_comes_back_the_same(quick: bool) -> None:
    assert_same(hand_made(), decoded_chunk(encoded_chunk(hand_made(), quick=quick)))


@pytest.mark.parametrize("quick", [False, True])
def test_a_chunk_without_samples_comes_back_too(quick: bool) -> None:
    empty = SampleChunk(origin=origin(), records={0: timed()})
    assert_same(empty, decoded_chunk(encoded_chunk(empty, quick=quick)))


@given(
    dies=st.lists(
        st.lists(st.sampled_from([0, 132, 2098, 2100, 65_534, NO_DIE]), min_size=8, max_size=8),
        min_size=1,
        max_size=20,
    ),
    own_mhz=st.sampled_from([2099.0, 2098.6, np.nan]),
)
@settings(max_examples=50, deadline=None)
def test_the_clocks_of_dies_come_back_whatever_the_sample_s_own_is(
    dies: list[list[int]], own_mhz: float
) -> None:
    records = timed(*(1_000 * row for row in range(len(dies))))
    records["die_clocks_mhz"], records["sm_clock_mhz"] = dies, own_mhz
    for quick in (False, True):
        chunk = SampleChunk(origin=origin(), records={0: records, 1: timed(5_000)})
        back = decoded_chunk(encoded_chunk(chunk, quick=quick)).records
        assert back[0]["die_clocks_mhz"].tolist() == dies
        assert (back[1]["die_clocks_mhz"] == NO_DIE).all()


def test_a_quick_chunk_of_a_version_without_dies_has_none() -> None:
    names = [name for name in RECORD.names or () if name != "die_clocks_mhz"]
    mine = records_of(recording(2).gpus[0], 0)
    earlier = np.zeros(len(mine), np.dtype([(name, RECORD[name]) for name in names]))
    for name in names:
        earlier[name] = mine[name]
    file = BytesIO()
    np.save(file, earlier, allow_pickle=False)
    chunk = SampleChunk(origin=origin(), records={0: mine})
    payload = msgspec.msgpack.decode(encoded_chunk(chunk, quick=True))
    payload[3] = compressed(file.getvalue())
    assert_same(chunk, decoded_chunk(msgspec.msgpack.encode(payload)))


def test_dies_take_no_room_where_there_are_none() -> None:
    assert die_columns(timed(1, 2, 3)) == {}


@given(
    gaps_us=st.lists(st.integers(1, 10**7), min_size=1, max_size=30),
    hz=st.sampled_from([0.1, 3.0, 10.0, 333.3, 1000.0]),
)
@settings(max_examples=50, deadline=None)
def test_times_come_back_exactly_at_any_rate_and_spacing(gaps_us: list[int], hz: float) -> None:
    records = timed(*(np.cumsum(gaps_us) * 1000).tolist())
    chunk = SampleChunk(origin=origin(hz=hz), records={1: records})
    back = decoded_chunk(encoded_chunk(chunk)).records[1]
    np.testing.assert_array_equal(back["t_mono_ns"], records["t_mono_ns"])


@given(
    gaps_ns=st.lists(st.integers(1, 5_000), min_size=1, max_size=50), span_ns=st.integers(0, 10**9)
)
@settings(max_examples=100, deadline=None)
def test_kept_times_rise_and_are_within_half_a_microsecond(
    gaps_ns: list[int], span_ns: int
) -> None:
    records = timed(*(10**9 + np.cumsum(gaps_ns)).tolist())
    records["span_ns"] = span_ns
    kept = in_stored_resolution(records, 10**9)
    t_ns = kept["t_mono_ns"]
    assert (np.diff(t_ns) > 0).all()
    assert (t_ns % 1000 == 0).all()
    # Every kept time is some given time, rounded; a spacing of 1 us or more loses nothing.
    distance = np.abs(t_ns[:, None] - records["t_mono_ns"][None, :]).min(axis=1)
    assert (distance <= 500).all()
    if min(gaps_ns) >= 1_000:
        assert len(kept) == len(records)
    assert (kept["span_ns"] >= span_ns).all()
    assert (kept["span_ns"] < span_ns + 1000).all()
    again = in_stored_resolution(kept, 0)
    np.testing.assert_array_equal(again, kept)


def test_of_samples_within_a_microsecond_the_first_is_kept() -> None:
    records = timed(1_499, 1_501, 1_900, 5_000)
    records["sm_clock_mhz"] = [1, 2, 3, 4]
    kept = in_stored_resolution(records, -1)
    assert kept["t_mono_ns"].tolist() == [1_000, 2_000, 5_000]
    assert kept["sm_clock_mhz"].tolist() == [1, 2, 4]
    assert records["t_mono_ns"].tolist() == [1_499, 1_501, 1_900, 5_000]


def test_what_is_not_later_than_what_was_kept_is_left_out() -> None:
    assert in_stored_resolution(timed(900, 2_000, 3_000), 2_000)["t_mono_ns"].tolist() == [3_000]


def test_merged_chunks_are_their_rows_in_order_and_their_triples_once() -> None:
    triples = triples_every_second(0, 3 * NS_PER_S, 10**18)
    first = SampleChunk(
        origin=origin(), records={0: timed(1_000)}, triples=tuple(triples[:2]), lost_count=1
    )
    second = SampleChunk(
        origin=origin(),
        records={0: timed(2_000), 1: timed(3_000)},
        triples=tuple(triples[1:]),
        lost_count=4,
    )
    both = merged([first, second])
    assert {slot: rows["t_mono_ns"].tolist() for slot, rows in both.records.items()} == {
        0: [1_000, 2_000],
        1: [3_000],
    }
    assert both.triples == tuple(triples)
    assert both.lost_count == 5


def test_the_span_is_of_all_gpus_in_unix_time() -> None:
    chunk = SampleChunk(
        origin=origin(),
        records={0: timed(2_000, 9_000), 1: timed(1_000)},
        triples=(TimeTriple(unix_ns=10**18, mono_ns=0, boot_ns=0),),
    )
    assert chunk.span_ns() == (10**18 + 1_000, 10**18 + 9_000)


def test_a_table_of_another_layout_gives_the_fields_that_are_the_same() -> None:
    other = np.dtype(
        [("sm_clock_mhz", np.float64), ("t_mono_ns", np.int64), ("power_w", np.float32)]
    )
    old = np.zeros(2, other)
    old["t_mono_ns"], old["sm_clock_mhz"], old["power_w"] = [5_000, 6_000], [1980, 1965], 700
    chunk = SampleChunk(origin=origin(), records={0: timed(5_000, 6_000)})
    data = encoded_chunk(chunk, quick=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chopperd.store.recorder.chunk.joined", lambda _: old)
        data = encoded_chunk(chunk, quick=True)
    back = decoded_chunk(data).records[0]
    assert back["t_mono_ns"].tolist() == [5_000, 6_000]
    assert back["sm_clock_mhz"].tolist() == [1980, 1965]
    assert np.isnan(back["power_w"]).all()
    assert np.isnan(back["limited_ns"]).all()


def test_joined_records_are_one_after_the_other() -> None:
    parts = list(second_of_records(0).values())
    rows = joined(parts)
    assert rows["t_mono_ns"].tolist() == [t for p in parts for t in p["t_mono_ns"].tolist()]
    assert rows["limited_ns"][:, Cause.POWER_CAP].tolist() == (rows["t_mono_ns"] / 4).tolist()


@given(data=st.binary(max_size=80))
@settings(max_examples=50, deadline=None)
def test_other_bytes_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(StoreError):
        decoded_chunk(data)


def test_bytes_cut_off_or_of_another_kind_are_refused() -> None:
    data = encoded_chunk(replace(hand_made(), lost_count=0))
    with pytest.raises(StoreError):
        decoded_chunk(data[:-9])
