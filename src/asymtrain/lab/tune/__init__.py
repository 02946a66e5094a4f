"""Do branches help my model? The recommended ones against the baseline, in pairs, and then alternatives against them.

question.py    the training that is asked about, the branches for it, and the runs that answer
rule.py        the verdict and the plan: every threshold, and pure functions
race.py        what a set of runs says, and what is missing: a pure function
running.py     train what is missing; the plan is kept in tune.json
snippet.py     the branches as code, and a check that nothing is left of them
answer.py      `Tuned`: the answer, its tables, figures and page

question = Question(base, (RECOMMENDED, *ALTERNATIVES), minutes=30)  # base: the Asymmetric run, with its epochs
result = run_tune(question, store=path, out=folder)                  # the same call goes on where it stopped
"""

from asymtrain.lab.tune.answer import Tuned, write_tuned
from asymtrain.lab.tune.question import ALTERNATIVES, EPOCHS, MINUTES, Question, as_candidates
from asymtrain.lab.tune.race import Pairs, Race, replay
from asymtrain.lab.tune.rule import RULE, Plan, Ruling, Timing, judge, make_plan
from asymtrain.lab.tune.running import run_tune, without_equals

__all__ = [
    "ALTERNATIVES", "EPOCHS", "MINUTES", "RULE", "Pairs", "Plan", "Question", "Race", "Ruling", "Timing", "Tuned",
    "as_candidates", "judge", "make_plan", "replay", "run_tune", "without_equals", "write_tuned",
]  # fmt: skip
