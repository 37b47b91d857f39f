"""One account of a worker's memory, and the one spill target, which is the scheduler's."""

import math

import dask
import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import fpmdask
from fpmdask.apps.matmul.client.stored import free_nbytes
from fpmdask.runtime.client.inputs import accounts, rooms
from fpmdask.runtime.memory import SUSPICIOUS, Account, is_much

nbytes = st.integers(0, 1 << 40)
used = st.fixed_dictionaries({"data": nbytes, "spilled": nbytes, "beside": nbytes})
targets = st.floats(0.01, 1.0)


@given(nbytes, targets, used, nbytes)
def test_nothing_is_free_beyond_the_target_and_what_is_reserved_is_not_free(
    limit, target, held, reserved
):
    account = Account(limit + 1, target, **held)
    for free in (account.free(), account.free_later(), account.free_for_all()):
        assert 0 <= free <= target * (limit + 1)
    assert account.free(reserved) <= account.free() <= account.free_later()
    assert account.free_for_all() <= account.free_later()
    left = target * (limit + 1) - held["data"]
    assert account.free(reserved) == max(0.0, left - held["beside"] - reserved) or math.isclose(
        account.free(reserved), left - held["beside"] - reserved, rel_tol=1e-9, abs_tol=1e-3
    )
    assert account.free_later() == max(0.0, left)


@given(st.sampled_from([None, 0, 0.0]), used, nbytes)
def test_without_a_limit_there_is_no_end(limit, held, reserved):
    account = Account(limit, 0.6, **held)
    assert account.free(reserved) == account.free_later() == account.free_for_all() == math.inf
    assert not is_much(reserved, limit)


@given(st.integers(1, 1 << 40), nbytes)
def test_what_is_much_is_a_share_of_the_limit(limit, unmanaged):
    assert is_much(unmanaged, limit) == (unmanaged > SUSPICIOUS * limit)


@gen_cluster(client=True, worker_kwargs={"memory_limit": 10**10})
async def test_the_spill_target_is_the_schedulers(c, s, a, b):
    with dask.config.set({"fpmdask.spill-target": 0.5}):
        await fpmdask.Balancer(c)
    with dask.config.set({"fpmdask.spill-target": 0.25}):
        await fpmdask.Balancer(c)  # it finds the coordinator
        assert s.plugins["fpmdask"].known_workers.accounts.spill_target == 0.5
        assert await rooms(c, None) == {a.address: 5e9, b.address: 5e9}
        beside = {address: s.workers[address].memory.unmanaged_old for address in s.workers}
        held = await accounts(c, [b.address])
        assert free_nbytes(held.values()) == 5e9 - beside[b.address]


@gen_cluster(client=True, worker_kwargs={"memory_limit": 10**10, "heartbeat_interval": "1h"})
async def test_a_client_hears_of_data_at_once_by_names_or_addresses(c, s, a, b):
    await fpmdask.Balancer(c)
    x = c.submit(np.ones, 1000, workers=[a.address])
    await wait(x)
    held = await accounts(c, [str(a.name), b.address])
    assert {address: of.data + of.spilled for address, of in held.items()} == {
        a.address: 8000,
        b.address: 0,
    }
    assert await rooms(c, [str(a.name)]) == {a.address: 6e9 - 8000}
    with pytest.raises(fpmdask.errors.CoordinatorError, match=r"no worker of \['nobody'\] is con"):
        await rooms(c, ["nobody"])
    assert await accounts(c, ["nobody"]) == {}
