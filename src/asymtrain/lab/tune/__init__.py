"""Which branches for my model? A race of candidates against Plain, and a confirmation on fresh seeds.

    question.py    the training that is asked about, the candidates, and the runs that answer
    rule.py        who stays in the race, and the verdict: every threshold, and pure functions
    planning.py    what fits into the time
    results.py     what a set of runs says: a pure function
    running.py     train what is missing; the plan is kept in tune.json
    snippet.py     the winner as code, and a check that nothing is left of it
    answer.py      `Tuned`: the answer, its tables, figures and page

    question = Question(base, minutes=30)                     # base: the Asymmetric run, with its epochs
    result = run_tune(question, store=path, out=folder)       # the same call goes on where it stopped

The race sees validation images alone, the confirmation fresh seeds and the test images: its interval is that of pairs
which took no part in the choice.
"""

from asymtrain.lab.tune.answer import Tuned
from asymtrain.lab.tune.planning import RacePlan, Rung, Timing, make_plan
from asymtrain.lab.tune.question import CANDIDATES, EPOCHS, MINUTES, Question, as_candidates
from asymtrain.lab.tune.results import Race, RungResult, replay
from asymtrain.lab.tune.rule import RULE, Rule, Ruling, Standing, is_moving, judge, survivors
from asymtrain.lab.tune.running import read_tune, run_tune, without_equals

__all__ = [
    "CANDIDATES", "EPOCHS", "MINUTES", "RULE", "Question", "Race", "RacePlan", "Rule", "Ruling", "Rung", "RungResult",
    "Standing", "Timing", "Tuned", "as_candidates", "is_moving", "judge", "make_plan", "read_tune", "replay",
    "run_tune", "survivors", "without_equals",
]  # fmt: skip
