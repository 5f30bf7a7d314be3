"""Peers, excess and the critical device, worked out by hand for small nodes."""

import pytest
from msgspec.structs import replace

from chopperd.model.report_rows import ExposedComm
from chopperd.report.build.summary import across_devices, own_times_ns
from tests.document_checks import check_document
from tests.unit.report.traced import MS, Job, document, node, sample_set, sampled


def test_the_excess_of_one_slow_gpu_among_five() -> None:
    jobs, samples = node([1500, 1500, 1500, 1500, 1400])
    made = document(jobs, samples)
    check_document(made)
    slow = [row for row in made.steps if row.rank == 4]
    # Median 1500: (1 - 1400/1500) of 80 ms of covered compute.
    assert [row.dvfs.excess_ns for row in slow] == [5_333_333] * 3
    # Constant clocks are known to half a step of 15 MHz, their median of five to
    # sqrt(pi / 2 / 5) of that: hypot(7.5, 14/15 x 4.20) / 1500 of 80 ms = 451 us.
    for row in slow:
        assert row.dvfs.excess_low_ns == pytest.approx(5_333_333 - 451_424, abs=10)
        assert row.dvfs.excess_high_ns == pytest.approx(5_333_333 + 451_424, abs=10)
    others = {row.dvfs.excess_ns for row in made.steps if row.rank != 4}
    assert others == {0}
    peers = [row.peers for row in made.steps if row.peers]
    assert len(peers) == 15
    assert {each.n for each in peers} == {5}
    assert [each.median_mhz for each in peers] == pytest.approx([1500.0] * 15)
    (total,) = [row for row in made.totals if row.rank == 4]
    assert total.dvfs.excess_ns == 16_000_000
    # The ceiling loss is another figure: 30 % of 80 ms.
    assert slow[0].dvfs.lost_ns == 24 * MS


def test_three_gpus_have_no_peers_and_a_note_says_so() -> None:
    jobs, samples = node([1500, 1500, 1400])
    made = document(jobs, samples)
    assert {row.peers for row in (*made.steps, *made.totals)} == {None}
    assert {row.dvfs.excess_ns for row in (*made.steps, *made.totals)} == {None}
    assert [note.text for note in made.notes if note.code == "peers_untraced"] == [
        "fewer than 4 GPUs of one model traced: excess over peers unknown"
    ]


def test_only_gpus_of_one_model_are_peers() -> None:
    jobs, samples = node([1500, 1500, 1500, 1500, 1100])
    gpus = [replace(each, gpu=replace(each.gpu, name="A100")) if i == 4 else each
            for i, each in enumerate(samples.gpus)]  # fmt: skip
    made = document(jobs, replace(samples, gpus=tuple(gpus)))
    by_rank = {row.rank: row.peers for row in made.totals}
    assert by_rank[4] is None
    assert by_rank[0] is not None
    assert by_rank[0].n == 4
    assert any("unknown for 1 of 5" in note.text for note in made.notes)


def test_a_gpu_without_a_clock_is_no_peer() -> None:
    jobs, samples = node([1500, 1500, 1500, 1500, 1400])
    made = document(jobs, replace(samples, gpus=samples.gpus[:4]))
    by_rank = {row.rank: row.peers for row in made.totals}
    assert by_rank[4] is None
    assert by_rank[0] is not None
    assert by_rank[0].n == 4


def test_the_critical_device_needs_longest_without_waiting() -> None:
    # All windows are 100 ms. Rank 4 communicates for 10 ms and waits for nobody; the others come
    # 10 ms before it.
    jobs, samples = node([1500] * 5, compute_ms=90)
    made = document(jobs, samples)
    assert {row.rank for row in made.steps if row.is_critical} == {4}
    assert sum(bool(row.is_critical) for row in made.steps) == 3
    first = [row for row in made.steps if row.step == 1]
    assert own_times_ns(first) == [90 * MS] * 4 + [100 * MS]
    # With the waits of one row unknown, all communication is taken off.
    first[0] = replace(first[0], exposed_comm_ns=ExposedComm())
    assert own_times_ns(first) == [80 * MS] * 4 + [90 * MS]


def test_files_of_one_rank_are_no_peers_of_each_other() -> None:
    # Four cycles of one GPU are one GPU.
    jobs = [Job(steps=(n, n + 1), at_ms=200 * k, uuid="GPU-0") for k, n in enumerate((1, 3, 5, 7))]
    made = document(jobs, sample_set(sampled(end_ms=900)))
    assert {row.peers for row in (*made.steps, *made.totals)} == {None}
    assert made.summary is not None
    (line,) = made.summary.gpus
    assert line.slowest_steps == 4  # one complete, non-tail step a file
    assert "rank_conflict" not in {note.code for note in made.notes}


def test_cycles_are_set_beside_the_same_cycle_of_other_ranks() -> None:
    jobs = [
        Job(rank=rank, steps=steps, at_ms=200 * k, uuid=f"GPU-{rank}")
        for rank in range(4)
        for k, steps in enumerate(((1, 2), (3, 4)))
    ]
    gpus = [sampled(rank, 1500 if rank else 1400, end_ms=450) for rank in range(4)]
    made = document(jobs, sample_set(*gpus))
    assert {row.peers.n for row in made.totals if row.peers} == {4}
    # 160 ms of compute a file, 1 - 1400/1500 of it.
    assert [row.dvfs.excess_ns for row in made.totals if row.rank == 0] == [10_666_667] * 2


def test_no_rows_give_no_rows() -> None:
    assert across_devices([]) == []


def test_a_gpu_that_two_ranks_share_is_not_its_own_peer() -> None:
    jobs, samples = node([1500, 1500, 1500, 1500, 1400])
    shared = [*jobs[:4], replace(jobs[4], uuid="GPU-0")]
    made = document(shared, samples)
    assert {row.gpu for row in made.totals} == {"0", "1", "2", "3"}
    assert {row.peers for row in (*made.steps, *made.totals)} == {None}
