"""Stacks that wait to be trained, and what becomes of those that come back."""

from collections import Counter, deque
from contextlib import suppress

from asymtrain.errors import UsageError
from asymtrain.lab.engine import StackPlan, StackProgress, close_checkpoint
from asymtrain.lab.engine.checkpoint import open_checkpoint
from asymtrain.lab.executors.outcomes import Failed, Job, Lost, Outcome, Report, Result, TooLarge

ATTEMPTS = 3  # a stack whose process or device breaks this often is given up


class Waiting:
    """A queue of stacks. A stack that was lost waits again, one that was too large as its halves."""

    def __init__(self, plans: list[StackPlan], job: Job, report: Report) -> None:
        self.plans, self.job, self.report = deque(plans), job, report
        self.attempts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self.plans)

    def take(self) -> StackPlan | None:
        """The next stack; none after the deadline."""
        if self.job.is_over():
            self.plans.clear()
        return self.plans.popleft() if self.plans else None

    def settle(self, result: Result) -> list[Outcome]:
        """The stack's outcome, unless it is to be tried again."""
        if isinstance(result, TooLarge):
            return self._halve(result.plan)
        if isinstance(result, Lost):
            return self._retry(result)
        return [result]

    def _halve(self, stack_plan: StackPlan) -> list[Outcome]:
        try:
            halves = stack_plan.halves()
        except UsageError as problem:
            return [Failed(stack_plan, str(problem))]
        size = len(stack_plan.specs)
        self.report(StackProgress(stack_plan.id, size, 0, stack_plan.specs[0].epochs, 0, 0.0))  # its halves begin anew
        self.report(f"a stack of {size} runs did not fit into memory: going on with two of half the size")
        if self.job.checkpoints is not None:
            # On a full disk the halves go on all the same.
            with suppress(OSError):
                for half in halves:
                    open_checkpoint(self.job.checkpoints, half)
            close_checkpoint(self.job.checkpoints / stack_plan.id)
        self.plans.extendleft(reversed(halves))
        return []

    def _retry(self, lost: Lost) -> list[Outcome]:
        self.attempts[lost.plan.id] += 1
        if self.attempts[lost.plan.id] >= ATTEMPTS:
            return [Failed(lost.plan, f"{lost.reason} ({ATTEMPTS} times)")]
        again = "anew" if self.job.checkpoints is None else "from its last checkpoint"
        self.report(f"{lost.reason}: the stack starts again {again}")
        self.plans.appendleft(lost.plan)
        return []
