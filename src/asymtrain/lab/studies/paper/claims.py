"""The paper's 36 claims, each with the parts that it is tested by.

A claim's words are in `printed/claims.csv`; this file says which printed cells it is about, and how. The paper's
effects are read from the tables under the same labels. A claim holds as far as its weakest part does
(`verdicts.judge`).

Besides the labels of `numbers` there are labels of evidence for which the paper prints no cell:

    redundancy/ARCH/N   as table1/ARCH/N, with one learning rate, weight decay and alpha for every N (claims about N)
    convergence/ARCH    as table3/ARCH/convergence, over all epochs of the runs instead of the first 100 (Effect)
    figure9/METRIC      attention of the ViT(20x) after training: object_coverage, peak_strength, gini_sparsity (Effect)
    inference/ARCH      how far the stripped network is from one that never had branches: weights and outputs (Quantity)
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from asymtrain.errors import unknown_name
from asymtrain.lab.studies.paper.numbers import labels, printed, rows

Kind = Literal[
    "effect", "interaction", "monotone", "cosine", "ordering", "landscape change", "attention", "share", "identity"
]
How = Literal[
    "effect", "sign", "no effect", "near zero", "difference", "not reversed", "agreement", "significant", "zero"
]
Of = Literal["change", "asymmetric", "value", "minimum"]


@dataclass(frozen=True)
class Part:
    """One thing that must hold for a claim to hold; `how` says what must hold of the interval.

    `effect`: the verdict rule, against the paper's number. `sign`: its sign alone. `no effect`: within 1% of 0.
    `near zero`: within 1.5 times the paper's number on both sides of 0 (what the paper calls near zero).
    `difference`: the verdict rule for the second cell's change minus the first's, paired by seed.
    `not reversed`: that difference is not clearly of the other sign, and 1 point or more of the other sign is excluded.
    `agreement`: a value and a change are both clear and have one sign.
    `significant`: p < 0.001 (Bonferroni) and a large d_av in every cell. `zero`: every value is 0.
    For a `minimum` over measured steps, which their number affects: reproduced by this rule, or else inconclusive.
    """

    how: How
    labels: tuple[str, ...]  # of the evidence
    paper: float | None = None
    of: Of = "change"  # in percent of Plain; or a cell's Asymmetric side, or the value or minimum of a `Quantity`
    sign: int = 0  # that the claim asserts, 1 or -1; 0 if it asserts none


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the parts that test it."""

    id: str
    where: str
    text: str
    quantity: str
    paper_value: str
    kind: Kind
    parts: tuple[Part, ...]
    beside: tuple[tuple[str, Part], ...] = ()  # comparisons that are shown with the verdict and do not affect it

    @property
    def needs(self) -> tuple[str, ...]:
        """Labels of the evidence, each once."""
        return tuple(dict.fromkeys(label for part in self.parts for label in part.labels))


@cache
def claims() -> tuple[Claim, ...]:
    tests, beside = _tests(), _beside()
    return tuple(
        Claim(
            row["id"], row["where"], row["claim"], row["quantity"], row["paper_value"], *tests[row["id"]],
            beside.get(row["id"], ()),
        )
        for row in rows("claims")
    )  # fmt: skip


def claim(name: str) -> Claim:
    by_id = {claim.id: claim for claim in claims()}
    if name not in by_id:
        raise unknown_name("claim", name, by_id)
    return by_id[name]


def family(label: str) -> int:
    """How many cells a test of this cell is corrected for: all of its table or figure."""
    table = label.partition("/")[0]
    sizes = {"redundancy": len(labels("table1")), "convergence": len(labels("table3"))}
    sizes |= {"figure9": 4, "inference": 3}  # figure 9 has four panels
    return sizes[table] if table in sizes else len(labels(table))


def epochs_wanted(label: str) -> int:
    """Epochs behind the paper's cell: 200 by appendix C.2, 100 in Figures 2 and 3 and their tables."""
    parts = label.split("/")
    if parts[0] in ("table4", "table14"):
        return int(parts[-1])
    return {"table2": 100, "table3": 100, "table5": 0, "table6": 0, "inference": 0}.get(parts[0], 200)


# Figure 9 prints no cells: its numbers are in the claims.
FIGURE9 = {"object_coverage": "c23", "peak_strength": "c24", "gini_sparsity": "c25"}


def paper_change(label: str) -> float:
    table, _, rest = label.partition("/")
    if table == "figure9":
        return _numbers(FIGURE9[rest])[0]
    cell = {"redundancy": f"table1/{rest}", "convergence": f"table3/{rest}/convergence"}.get(table, label)
    change = printed(cell).improvement
    assert change is not None, f"{label} has no change"
    return change


def _tests() -> Mapping[str, tuple[Kind, tuple[Part, ...]]]:
    vit, cnn, mlp = (tuple(f"redundancy/{arch}/{n}" for n in (1, 7, 10, 20)) for arch in ("vit", "cnn", "mlp"))
    few_shot = tuple(f"table9/vit/{count}" for count in (100, 200, 500))
    noisy = tuple(f"table12/mlp/{share}" for share in (0.5, 0.7, 0.8))
    landscape = [
        label for table in ("table5", "table6") for label in labels(table) if label.endswith("std_loss")
    ]  # the deviation alone: for a plane, range and gradient say the same
    coverage, plain_later = "table14/object_coverage/20", "table14/object_coverage/100"
    printed_coverage = _numbers("c22")
    unmoved = Part("no effect", ("table10/cnn",), paper_change("table10/cnn"))
    same = tuple(Part("zero", (f"inference/{arch}",), 0.0, "value") for arch in ("mlp", "cnn", "vit"))
    return {
        "c01": ("effect", _effects("table1/vit/20")),
        "c02": ("effect", _effects("table1/cnn/1")),
        "c03": ("monotone", _trend(vit, anchor=vit[-1])),
        "c04": ("effect", _effects(*(label.replace("redundancy", "table1") for label in cnn))),
        "c05": ("monotone", _trend(mlp, anchor=mlp[0])),
        "c06": ("interaction", (_difference("table1/cnn/20", "table1/vit/20"),)),
        "c07": ("cosine", (_value("effect", "table2/vit/average"),)),
        "c08": ("cosine", (_value("effect", "table2/cnn/average"),)),
        "c09": ("cosine", (_value("near zero", "table2/mlp/average"),)),
        # The claim says positive, but the printed minimum is negative. The claim is tested.
        "c10": ("cosine", (Part("sign", ("table2/vit/min",), printed("table2/vit/min").value, "minimum", sign=1),)),
        "c11": ("cosine", (Part("effect", ("table2/cnn/min",), printed("table2/cnn/min").value, "minimum", sign=-1),)),
        "c12": ("ordering", tuple(_agreement(arch) for arch in ("mlp", "cnn", "vit"))),
        "c13": ("ordering", _effects("table3/cnn/convergence", "table3/cnn/final")),
        "c14": ("effect", _effects("table3/cnn/final")),
        "c15": ("ordering", _effects("table3/vit/convergence", "table3/vit/final")),
        "c16": ("effect", _effects("table4/vit/100")),
        "c17": ("ordering", (_value("effect", "table4/cnn/50", of="asymmetric"),)),
        "c18": ("landscape change", _effects("table5/mlp/300/std_loss")),
        "c19": ("landscape change", _effects("table6/cnn/300/std_loss")),
        "c20": ("landscape change", _effects("table6/vit/300/std_loss")),
        "c21": ("landscape change", tuple(_sign(label) for label in landscape)),
        # Once as the text's two percentages, once as the change that the figure prints.
        "c22": (
            "attention",
            (Part("effect", ("figure9/object_coverage",), _change(*reversed(printed_coverage)), sign=1),),
        ),
        "c23": ("attention", _effects("figure9/object_coverage")),
        "c24": ("attention", _effects("figure9/peak_strength")),
        "c25": ("attention", _effects("figure9/gini_sparsity")),
        "c26": ("attention", _effects(*(f"table14/map_entropy/{epoch}" for epoch in (20, 60, 100)))),
        "c27": ("attention", (_across(plain_later, coverage),)),
        "c28": ("effect", _effects(*(f"table8/mlp/{count}" for count in (100, 200, 500)))),
        "c29": ("monotone", _trend(few_shot, anchor=few_shot[-1])),
        "c30": ("effect", (*_effects("table10/mlp"), unmoved, *_effects("table10/vit"))),
        "c31": ("monotone", _trend(noisy, anchor=noisy[-1])),
        "c32": ("effect", _effects(*(f"table11/mlp/{share}" for share in (0.5, 0.7, 0.8)))),
        "c33": ("effect", _effects("table16/all/vit", "table16/one/vit")),
        "c34": ("effect", _effects("table16/all/cnn", "table16/one/cnn")),
        "c35": ("share", (Part("significant", labels("table1"), 1.0),)),
        "c36": ("identity", same),
    }  # fmt: skip


def _beside() -> Mapping[str, tuple[tuple[str, Part], ...]]:
    """Cases in which the paper's own settings or all epochs add something to the parts."""
    own = "At the paper's own settings for each N, where {} too"
    whole = "Over all 200 epochs instead of the first 100"
    return {
        "c03": ((own.format("alpha and weight decay differ"), _difference("table1/vit/1", "table1/vit/20")),),
        "c05": ((own.format("alpha differs"), _difference("table1/mlp/1", "table1/mlp/20")),),
        "c13": ((whole, _effects("convergence/cnn")[0]),),
        "c15": ((whole, _effects("convergence/vit")[0]),),
    }


def _effects(*names: str) -> tuple[Part, ...]:
    return tuple(Part("effect", (name,), paper_change(name), sign=_sign_of(paper_change(name))) for name in names)


def _sign(name: str) -> Part:
    return Part("sign", (name,), paper_change(name), sign=_sign_of(paper_change(name)))


def _value(how: How, name: str, of: Literal["value", "asymmetric"] = "value") -> Part:
    paper = getattr(printed(name), of)
    assert isinstance(paper, float), f"{name} has no {of}"
    return Part(how, (name,), paper, of, _sign_of(paper))


def _difference(first: str, second: str, how: How = "difference", sign: int | None = None) -> Part:
    paper = paper_change(second) - paper_change(first)
    return Part(how, (first, second), paper, sign=_sign_of(paper) if sign is None else sign)


def _trend(levels: tuple[str, ...], anchor: str) -> tuple[Part, ...]:
    """The last level against the first, no step clearly reversed, and the sign at the `anchor` level."""
    whole = _difference(levels[0], levels[-1])
    steps = [_difference(low, high, "not reversed", whole.sign) for low, high in itertools.pairwise(levels)]
    return (whole, *steps, _sign(anchor))


def _agreement(arch: str) -> Part:
    cosine, effect = f"table2/{arch}/average", f"table1/{arch}/20"
    return Part("agreement", (cosine, effect), paper_change(effect), sign=_sign_of(printed(cosine).value or 0.0))


def _across(plain: str, asymmetric: str) -> Part:
    """Asymmetric of one cell against Plain of another."""
    before, after = printed(plain).plain, printed(asymmetric).asymmetric
    assert before is not None
    assert after is not None
    change = _change(before, after)
    return Part("effect", (plain, asymmetric), change, sign=_sign_of(change))


def _numbers(name: str) -> list[float]:
    (values,) = [row["paper_value"] for row in rows("claims") if row["id"] == name]
    return [float(text) for text in values.split(";")]


def _change(before: float, after: float) -> float:
    return 100 * (after - before) / before


def _sign_of(value: float) -> int:
    return (value > 0) - (value < 0)
