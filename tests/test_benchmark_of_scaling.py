"""The benchmark of scaling counts the bytes that a program sends, and computes its plan from them."""

import pytest

from benchmarks.scaling import collectives, plan

PROGRAM = """HloModule jit_f

%body.1 (p: (f32[], f32[100,3])) -> (f32[], f32[100,3]) {
  %x = f32[100,3]{1,0} parameter(0)
  %all-reduce.1 = f32[100,3]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %all-reduce.2 = (f32[], s32[7]{0}) all-reduce(%a, %b), channel_id=2, to_apply=%add
  ROOT %gathered = bf16[8,4]{1,0} all-gather(%c), channel_id=3, dimensions={0}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %once = f32[1000]{0} all-reduce(%x), channel_id=4, to_apply=%add
}
"""


def test_the_bytes_of_collectives_in_loops_are_counted():
    assert collectives(PROGRAM) == {"count": 3, "bytes": 1200 + 4 + 28 + 64}


def test_a_ring_sends_almost_twice_the_bytes():
    found = plan(9_580_844)
    assert found["megabytes_sent_by_each_host"] == pytest.approx(18.86, abs=0.01)
    assert found["ms_at_100_gbit_per_second"] == pytest.approx(1.509, abs=0.001)
