"""Background tasks: one for each key, ended by closing their owner, on whatever event loop they run."""

from __future__ import annotations

import asyncio
import threading

from chatstack.client.background import BackgroundTasks, Owner


class Work:
    """Work that goes on until it may end, and what became of it."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended: list[str] = []
        self.may_end = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")


async def steps(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_of_one_key_there_is_one_task_and_of_two_keys_there_are_two() -> None:
    async def main() -> None:
        tasks, owner, work = BackgroundTasks(), Owner(), Work()
        for key in ("a", "a", "b"):
            tasks.start(owner, key, work)
        await steps()
        assert (work.begun, len(tasks)) == (2, 2)
        assert (tasks.runs("a"), tasks.runs("c")) == (True, False)
        work.may_end.set()
        assert await tasks.joined("a")
        await steps()
        assert (len(tasks), tasks.runs("a"), await tasks.joined("a")) == (0, False, False)
        tasks.start(owner, "a", work)
        await steps()
        assert work.begun == 3

    asyncio.run(main())


def test_closing_an_owner_cancels_its_tasks_waits_for_them_and_lets_it_start_no_more() -> None:
    async def main() -> None:
        tasks, mine, others, work, other = BackgroundTasks(), Owner(), Owner(), Work(), Work()
        tasks.start(mine, "a", work)
        tasks.start(others, "b", other)
        await steps()
        for _ in range(2):
            await mine.aclose()
        assert (work.ended, other.ended) == (["cancelled"], [])
        tasks.start(mine, "c", work)
        await steps()
        assert (len(tasks), work.begun) == (1, 1)
        await others.aclose()
        assert other.ended == ["cancelled"]

    asyncio.run(main())


def test_whoever_joins_and_is_cancelled_leaves_the_work_alone() -> None:
    async def main() -> None:
        tasks, owner, work = BackgroundTasks(), Owner(), Work()
        tasks.start(owner, "a", work)
        joining = asyncio.ensure_future(tasks.joined("a"))
        await steps()
        joining.cancel()
        await steps()
        assert joining.cancelled()
        assert work.ended == []
        work.may_end.set()
        await steps()
        assert work.ended == ["done"]

    asyncio.run(main())


def test_a_task_of_an_event_loop_that_was_closed_before_it_ended_is_forgotten() -> None:
    tasks, owner = BackgroundTasks(), Owner()

    async def lost() -> None:
        tasks.start(owner, "a", asyncio.Event().wait)  # type: ignore[arg-type]
        await steps()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(lost())
    (left,) = asyncio.all_tasks(loop)
    loop.close()
    assert tasks.runs("a")

    async def later() -> None:
        work = Work()
        work.may_end.set()
        tasks.start(owner, "b", work)
        assert not tasks.runs("a")
        await owner.aclose()

    asyncio.run(later())
    assert len(tasks) == 0
    left._log_destroy_pending = False  # type: ignore[attr-defined]


def test_an_owner_is_closed_from_another_event_loop_than_that_of_its_task() -> None:
    tasks, owner, begun, ended = BackgroundTasks(), Owner(), threading.Event(), list[str]()

    async def main() -> None:
        work = Work()
        tasks.start(owner, "a", work)
        begun.set()
        await tasks.joined("a")
        ended.extend(work.ended)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert begun.wait(60)

    async def closing() -> None:
        await owner.aclose()

    asyncio.run(closing())
    thread.join(60)
    assert ended in (["cancelled"], [])  # it may have been cancelled before its first step
    assert len(tasks) == 0
