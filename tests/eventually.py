"""What holds a moment later: messages are on their way, however busy the machine is."""

import asyncio
import gc

SECONDS = 30.0


async def until(true, collecting=False):
    """Wait until ``true()``, collecting garbage where what is waited for may hang on it.

    Frames of exceptions that were raised hold arrays, coroutines that end later do so in cycles.
    """
    loop = asyncio.get_running_loop()
    late = loop.time() + SECONDS
    while not true():
        assert loop.time() < late, "it did not come to that"
        if collecting:
            gc.collect()
        await asyncio.sleep(0.02)


async def side_of(worker):
    """Return fpmdask's side of a worker once it has started there."""
    plugin = worker.plugins["fpmdask"]
    assert not await plugin.starting
    return plugin.side


def in_memory(scheduler):
    """Return the keys of what workers hold."""
    return {key for key, task in scheduler.tasks.items() if task.state == "memory"}


async def nothing_left(scheduler):
    """Wait until the scheduler has no task, and knows of nothing that workers hold."""
    try:
        await until(
            lambda: not scheduler.tasks and not any(w.has_what for w in scheduler.workers.values()),
            collecting=True,
        )
    except AssertionError:
        raise AssertionError(f"left behind: {list(scheduler.tasks)}") from None


async def no_data(scheduler, workers):
    """Wait until the workers have heard, too, that nothing is left."""
    await nothing_left(scheduler)
    await until(lambda: not any(worker.data for worker in workers))
