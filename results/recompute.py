"""Recompute the numbers at the top of docs/reproduction.md from the rows in results/*200-epochs*.

    python results/recompute.py [PAGE]

It reads the Parquet files and the paper's printed tables with pandas and imports nothing of asymtrain: each number is
computed as the pages define it. It prints each number of the abstract and of the table of verdicts beside the page's,
and each verdict by the rule before. It exits with 1 where a digit or a verdict differs, or where the abstract has a
number that it does not compute. At the end stand verdicts on c06 and on Tables 3 to 6 and 14, and the search, by other
choices, and how often accuracy drops within an epoch, by precision (docs/deviations.md).
"""

import contextlib
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parents[1]
PAGE = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "reproduction.md"
LAST, CURVE, TAIL = 200, 100, 20  # epochs: of a run, of the paper's curves, of the reading `last20`
MANY = 20  # branches of Tables 2 to 4
# What specs leave out. 500 images per class are all of CIFAR-100.
DEFAULTS = {"arch": "mlp", "alpha": 1, "redundancy": 1, "learning_rate": 0.001, "weight_decay": 0.01, "test": "last"}
DEFAULTS |= {"label_noise": 0, "per_class": 500}
WEAKEST_LAST = ["Reproduced", "Right direction, different size", "Inconclusive", "Paper's size excluded", "No effect"]
WEAKEST_LAST += ["Contradicted", "Cannot differ"]
UNDER = "Only under instruments"


def load(name, columns=None):
    """One kind of rows, of all folders."""
    files = sorted(ROOT.glob(f"results/*200-epochs*/{name}.parquet"))
    return pd.concat([pd.read_parquet(file, columns=columns) for file in files], ignore_index=True)


def printed(name, *index):
    """One of the paper's tables."""
    return pd.read_csv(next(ROOT.glob(f"src/asymtrain/lab/studies/paper/printed/{name}*.csv"))).set_index(list(index))


specs, runs, measured = load("specs").drop_duplicates("id"), load("runs", ["attempt", "outcome"]), load("measurements")
assert set(runs.attempt) == {1}, "no run was repeated"
assert set(runs.outcome) == {"finished"}, "none diverged"
columns = ["test_accuracy", "validation_accuracy", "train_accuracy", "cosine", "cosine_min"]
epochs = dict(iter(load("epochs", ["spec_id", "epoch", *columns]).set_index("epoch").groupby("spec_id")))
trials = pd.DataFrame([DEFAULTS | json.loads(spec) for spec in specs.spec], index=specs.id)
ids = {}  # by settings and seed
for row in specs.itertuples():
    ids.setdefault(frozenset((json.loads(row.spec) | {"seed": 0}).items()), {})[row.seed] = row.id
seeds = sorted(max(ids.values(), key=len))


def by_seed(**settings):
    """The ids of the specs with these settings and no others."""
    wanted = {"dataset": "cifar100", "epochs": LAST, "precision": "bf16", "seed": 0} | settings
    found = ids[frozenset((key, value) for key, value in wanted.items() if DEFAULTS.get(key) != value)]
    assert sorted(found) == seeds, settings
    return found


def curves(column, **settings):
    """By epoch and seed."""
    return pd.DataFrame({seed: epochs[one][column] for seed, one in by_seed(**settings).items()})


def pair(column, alpha, **settings):
    """Plain and Asymmetric."""
    return curves(column, alpha=0, redundancy=0, **settings), curves(column, alpha=alpha, **settings)


def change(plain, asymmetric, own=False):
    """In percent of Plain's mean, or of each seed's own Plain, by seed; also of two printed numbers."""
    return 100 * (asymmetric - plain) / (plain if own else np.mean(plain))


def interval(sample, cells):
    """Mean and ends of the 95% t interval, by Bonferroni for the cells of the table."""
    half = stats.t.ppf(1 - 0.025 / cells, len(sample) - 1) * stats.sem(sample)
    return [sample.mean(), sample.mean() - half, sample.mean() + half]


def rule(paper, sample, cells, margin=1.0, before=False):
    """The rule under "Verdicts", in units of the paper's number: 1 is its size, 0 no effect. And the rule before it."""
    estimate, *ends = (number / paper for number in interval(sample, cells))
    low, high = sorted(ends)
    if high < 0:
        return "Contradicted"
    if low > 0:
        sized = (low >= 0.5 and high <= 1.5) or (0.5 <= estimate <= 1.5 and low <= 1 <= high)
        sized = sized or (before and low <= 1.5 and high >= 0.5)
        return "Reproduced" if sized else "Right direction, different size"
    if max(-low, high) * abs(paper) < margin:
        return "No effect"
    return "Paper's size excluded" if high < 0.5 and not before else "Inconclusive"


def judge(*parts):
    """Numbers and verdict of the weakest part, the first of several, and the verdict before. `rule` takes a part."""
    rulings, earlier = ([rule(*part, before=before) for part in parts] for before in (False, True))
    weakest = max(rulings, key=WEAKEST_LAST.index)
    paper, sample, cells, *_ = parts[rulings.index(weakest)]
    return [paper, *interval(sample, cells), len(sample)], weakest, max(earlier, key=WEAKEST_LAST.index)


def judge_minimum(part, positive=False):
    """Of a minimum over steps, which more of them lower: it shows what it reaches, or nothing."""
    numbers, now, before = judge((-part[0], *part[1:]) if positive else part)
    shown = numbers[2] > 0 if positive else now == "Reproduced"
    return [part[0], *numbers[1:]], "Reproduced" if shown else "Inconclusive", before


def against(second, first):
    """The part that is the difference of two."""
    return second[0] - first[0], second[1] - first[1], second[2]


# Table 1, at the settings of Table 13
claims, table13 = printed("claims", "id"), printed("table13", "architecture", "redundancy")
settings_of = {cell: {"arch": cell[0], "test": "every"} | row for cell, row in table13.T.to_dict().items()}
table1, at_end, tail, cosines, plain_gap = printed("table01", "architecture", "redundancy"), {}, {}, {}, {}
strong, not_large = 0, 0
for cell, settings in settings_of.items():
    sides = pair("test_accuracy", **settings)
    plain, asymmetric = (side.loc[LAST] for side in sides)
    at_end[cell] = table1.improvement_pct[cell], change(plain, asymmetric), len(table1)
    tail[cell] = table1.improvement_pct[cell], change(*(side.tail(TAIL).mean() for side in sides)), len(table1)
    cosines[cell] = curves("cosine", **settings).loc[:CURVE].mean()
    plain_gap[cell] = plain.mean() - table1.plain_mean[cell]
    d, *ends = (end / np.mean([plain.std(), asymmetric.std()]) for end in interval(asymmetric - plain, len(table1)))
    strong += stats.ttest_rel(asymmetric, plain).pvalue * len(table1) < 0.001 and abs(d) >= 0.8
    not_large += max(map(abs, ends)) < 0.8

# Tables 2 to 4, the same runs. Plain and Asymmetric are one cell of Tables 3 and 4.
table2, table3 = printed("table02", "architecture").filter(like="similarity"), printed("table03", "architecture")
table4, cosine, lowest = printed("table04", "architecture", "epoch"), {}, {}
for arch in table2.index:
    smallest = curves("cosine_min", **settings_of[arch, MANY]).loc[:CURVE].min()
    cosine[arch] = table2.average_similarity[arch], cosines[arch, MANY], table2.size, 0.01
    lowest[arch] = table2.min_similarity[arch], smallest, table2.size, 0.01


def trajectory(arch, n=MANY, share=0.99, points=0.0, own=False, best=False):
    """Parts of Tables 3 and 4. A run has converged with this share of its best validation accuracy, or points below."""
    names, row = ("train_accuracy", "validation_accuracy"), table3.loc[arch]
    training, validation = ([side.loc[:CURVE] for side in pair(name, **settings_of[arch, n])] for name in names)
    first = [(side >= share * side.max() - points).idxmax() for side in validation]
    final = [side.max() if best else side.loc[CURVE] for side in validation]
    gaps = [before - after for before, after in zip(training, validation, strict=True)]
    return {
        "convergence": (change(*row.iloc[:2]), change(*first, own), table3.size / 2),
        "final": (change(*row.iloc[2:]), change(*final, own), table3.size / 2),
        "gap 50": (table4.asymmetric[arch, 50], gaps[1].loc[50], len(table4), 0.01),
        "gap 100": (change(*table4.loc[arch, 100]), change(*(gap.loc[100] for gap in gaps), own), len(table4)),
    }


def judge_trajectories(**choices):
    """The claims on Tables 3 and 4."""
    cnn, vit = trajectory("cnn", **choices), trajectory("vit", **choices)
    return {
        "c13": judge(cnn["convergence"], cnn["final"]),
        "c14": judge(cnn["final"]),
        "c15": judge(vit["convergence"], vit["final"]),
        "c16": judge(vit["gap 100"]),
        "c17": judge(cnn["gap 50"]),
    }


# Tables 5 and 6: untrained networks. And what idle branches change, and what stripped ones leave.
values = measured.value.map(json.loads)
surfaces = values[measured.name.str.startswith("landscape")].str["rows"].explode().apply(pd.Series)
surfaces["arch"] = measured.spec_id[surfaces.index].map(trials.arch)
surfaces["total"] = measured.name[surfaces.index].str.contains("loss=total")
surfaces = surfaces.query("directions == 'all'").infer_objects()
deviations, of_total = (
    rows.pivot_table(index=["scaling", "arch", "seed"], columns="redundancy", values="std")
    for _, rows in surfaces.groupby("total")
)
table5 = printed("table05", "architecture", "redundancy").std_change_pct.dropna()
one_surface = {  # for every N, along directions of unit variance
    arch: (rows.nunique(axis=1) == 1).all()
    for arch, rows in deviations.loc["variance"].groupby(level="arch")
    if len(rows) == len(seeds)
}


def flatter(arch, n=300, own=False):
    """The part at N branches along directions of unit norm, as the reading `instruments` has it."""
    cells = 3 * len(
        table5["mlp"] if arch == "mlp" else table5[["cnn", "vit"]]
    )  # three metrics; Table 6 has two backbones
    return table5[arch, n], change(*(deviations.loc["norm", arch][branches] for branches in (0, n)), own), cells


def judge_surface(arch):
    """One surface stands for every N, unless the claim holds along directions of unit norm."""
    if one_surface[arch] and rule(*flatter(arch)) == "Reproduced":
        return judge(flatter(arch))[0], UNDER
    return [table5[arch, 300]], "Cannot differ" if one_surface[arch] else "Inconclusive"


def judge_smoothing():
    """Every backbone at every N that the paper prints: the claim is about signs alone."""
    if sum(one_surface.values()) < len(table2):
        return [table5["mlp", 1]], "Not yet run"
    parts = [flatter(*cell) for cell in table5.index]
    if all(interval(*part[1:])[2] < 0 for part in parts):
        return [parts[0][0], *interval(*parts[0][1:]), len(seeds)], UNDER
    return [table5["mlp", 1]], "Cannot differ"


identity = values[measured.name == "identity"].apply(pd.Series)
idle, left_behind = identity.weights.abs().max(), identity[["outputs", "parameters"]].abs().max(axis=None)

# Table 14 and Figure 9: attention of the ViT's class token, the runs of Table 1, by spec and epoch
table14, vit = printed("table14", "metric", "epoch"), settings_of["vit", MANY]
of_token = measured.name.str.startswith("attention") & ~measured.name.str.contains("query=")
looked = measured[of_token].set_index(["spec_id", "epoch"]).value.map(lambda text: json.loads(text)["scopes"])
assert looked.index.is_unique, "each network was looked at once"


def attend(metric, paper, before, after, cells, layer, own):
    """A part: Asymmetric at the epoch `after` against Plain at the epoch `before`."""
    sides = (by_seed(**vit | {"alpha": 0, "redundancy": 0}), before), (by_seed(**vit), after)
    ends = (np.array([looked[side[seed], epoch][layer][metric][0] for seed in seeds]) for side, epoch in sides)
    return paper, change(*ends, own), cells


def judge_attention(layer="mean", own=False, panels=4):
    """The claims on Table 14 and Figure 9, which has four panels."""
    end, by_epoch, chosen = (LAST, LAST, panels), table14.loc["map_entropy"], {"layer": layer, "own": own}
    asymmetric, plain = map(float, claims.paper_value["c22"].split(";"))
    numbers = {claim: float(claims.paper_value[claim]) for claim in ("c23", "c24", "c25")}
    coverage = table14.loc["object_coverage"]
    early, late = coverage.index[[0, -1]]
    sooner = change(coverage.plain[late], coverage.asymmetric[early])
    entropies = [
        attend("entropy", change(row.plain, row.asymmetric), epoch, epoch, len(table14), **chosen)
        for epoch, row in by_epoch.iterrows()
    ]
    return {
        "c22": judge(attend("coverage_above", change(plain, asymmetric), *end, **chosen)),
        "c23": judge(attend("coverage_above", numbers["c23"], *end, **chosen)),
        "c24": judge(attend("peak_strength", numbers["c24"], *end, **chosen)),
        "c25": judge(attend("gini", numbers["c25"], *end, **chosen)),
        "c26": judge(*entropies),
        "c27": judge(attend("coverage_above", sooner, late, early, len(table14), **chosen)),
    }


# Tables 8 to 12, the MLP. On CIFAR-10: the settings with the best validation accuracy, of Plain and then of all alphas.
searches = trials.query("test == 'never'")
searches = searches.assign(
    best=[epochs[key].validation_accuracy.max() for key in searches.index],
    last=[epochs[key].validation_accuracy.iloc[-1] for key in searches.index],
)
trials = searches[searches.dataset == "cifar10"]
chosen = trials.loc[trials[trials.redundancy == 0].best.idxmax(), ["learning_rate", "weight_decay"]]
with_branches = trials[(trials.redundancy == 1) & (trials[chosen.index] == chosen).all(axis=1)]
searched = {"dataset": "cifar10", "alpha": with_branches.alpha[with_branches.best.idxmax()], **chosen}
table10, whole = printed("table10", "architecture"), {"test": "last", "validation": "none"}
cifar10 = [side.loc[LAST] for side in pair("test_accuracy", **searched, test="every")]
table8, few, at_equal_fit, below = printed("table07", "table", "samples_per_class").loc[8], {}, {}, {}
for images, row in table8.iterrows():
    settings = settings_of["mlp", 1] | whole | {"per_class": images}
    plain, asymmetric = (side.loc[LAST] for side in pair("test_accuracy", **settings))
    few[images] = row.improvement_pct, change(plain, asymmetric), len(table8)
    below[images] = -change(row.plain_mean, plain.mean())
    # Tested at every epoch, as `fitting` is: where a side first has the lower of both best training accuracies.
    training, tested = (pair(name, **settings | {"test": "every"}) for name in ("train_accuracy", "test_accuracy"))
    level = np.minimum(*(side.max() for side in training))
    sides = [after.where(before >= level).bfill().iloc[0] for before, after in zip(training, tested, strict=True)]
    at_equal_fit[images] = interval(change(*sides), 3 * len(table8))  # at three alphas
noisy, table11 = {}, printed("table11", "table", "noise")
for (table, share), row in table11.iterrows():
    settings = (searched if table == 11 else settings_of["mlp", 1]) | whole | {"label_noise": share}
    sides = (side.loc[LAST] for side in pair("test_accuracy", **settings))
    noisy[table, share] = row.improvement_pct, change(*sides), len(table11.loc[table])


def control(arch, reading="last", asymmetric=False, **changed):
    """A row of the recipe `controls`: branches of Table 1 with something changed, from Plain (or from Asymmetric)."""
    settings, ends = settings_of[arch, MANY], []
    for side in (settings if asymmetric else settings | {"alpha": 0, "redundancy": 0}, settings | changed):
        tested = curves("test_accuracy", **side)
        at = curves("validation_accuracy", **side).idxmax() if reading == "best" else dict.fromkeys(seeds, LAST)
        single = pd.Series({seed: tested[seed][at[seed]] for seed in seeds})
        ends.append(tested.tail(TAIL).mean() if reading == "last20" else single)
    return interval(change(*ends), 21 if asymmetric else 24)


# By claim: numbers (the paper's, ours, both ends, seeds) and verdict. What is not here waits for rows.
sizes, shares = ([int(number) for number in re.findall(r"\d+", claims.quantity[claim])] for claim in ("c28", "c32"))
opposite = [images for images, part in few.items() if rule(*part) == "Contradicted"]
differ, named = (against(at_end["vit", MANY], at_end["cnn", n]) for n in (MANY, 1))  # c06, and as the abstract names it
results = {
    "c01": judge(at_end["vit", MANY]),
    "c02": judge(at_end["cnn", 1]),
    "c03": ([at_end["vit", MANY][0] - at_end["vit", 1][0]], "Inconclusive" if idle else "Cannot differ"),
    "c04": judge(*(part for cell, part in at_end.items() if cell[0] == "cnn")),
    "c05": ([at_end["mlp", MANY][0] - at_end["mlp", 1][0]], "Inconclusive" if idle else "Cannot differ"),
    "c06": judge(differ),
    "c07": judge(cosine["vit"]),
    "c08": judge(cosine["cnn"]),
    "c09": judge(cosine["mlp"]),
    "c10": judge_minimum(lowest["vit"], positive=True),  # as the claim says, against the paper's own number
    "c11": judge_minimum(lowest["cnn"]),
    **judge_trajectories(),
    **{
        claim: judge_surface(arch)
        for claim, arch in (("c18", "mlp"), ("c19", "cnn"), ("c20", "vit"))
        if arch in one_surface
    },
    "c21": judge_smoothing(),
    **judge_attention(),
    "c28": judge(*(few[images] for images in sizes)),
    "c30": judge((table10.improvement_pct["mlp"], change(*cifar10), len(table10))),  # CNN and ViT cannot mend it
    "c31": judge(against(noisy[12, shares[-1] / 100], noisy[12, shares[0] / 100])),
    "c32": judge(*(noisy[11, share / 100] for share in shares)),
    "c35": (
        ["12", "12", strong, len(table1), len(seeds)],
        "Reproduced" if strong == len(table1) else "Contradicted" if not_large else "Inconclusive",
        "Reproduced" if strong == len(table1) else "Contradicted",
    ),
    "c36": ([left_behind, 1], "Contradicted" if left_behind else "Reproduced"),  # of each backbone one network
}
for arch in cosine:  # c12: where the effect and the cosine are clear, their signs agree or not
    (effect, low, high), aligned = interval(*at_end[arch, MANY][1:]), interval(*cosine[arch][1:3])
    if (low > 0 and aligned[2] < 0) or (high < 0 and aligned[1] > 0):
        numbers = [at_end[arch, MANY][0], cosine[arch][0], effect, aligned[0], low, high, len(seeds)]
        results["c12"] = numbers, "Contradicted"
verdicts = {claim: results[claim][1] if claim in results else "Not yet run" for claim in claims.index}
before = {claim: result[-1] for claim, result in results.items()}  # by the rule before 2026-11-16
before |= dict.fromkeys(("c03", "c05"), "Inconclusive" if idle else "No effect")  # an interval of 0 to 0
before["c18"] = UNDER if rule(*flatter("mlp"), before=True) == "Reproduced" else "No effect"
counted = Counter(verdicts.values())
judged = len(claims) - counted["Not yet run"]

# The page
NUMBER = r"([-+]?\d+(?:\.\d+)?)"
OWN, EFFECT = (rf"{NUMBER}% \({NUMBER}% to {NUMBER}%{paper}\)" for paper in ("", f"; paper {NUMBER}%"))
page, wrong = PAGE.read_text(), []
abstract = " ".join(page[: page.index("![")].split())


def compare(name, shown, computed):
    """Print both, what was computed with the page's digits."""
    ours = [
        number if isinstance(number, str) else f"{number:{'+' * (text[0] in '+-')}.{len(text.partition('.')[2])}f}"
        for text, number in zip(shown, computed, strict=False)
    ]
    same = len(shown) == len(computed) and ours == list(shown)
    print(f"{name:22}  {' '.join(shown):70}  {' '.join(ours):70}  {'same' if same else 'DIFFERENT'}")
    wrong.extend([] if same else [name])


def effect_of(part):
    """As the abstract has it: the paper's number comes last."""
    return [*interval(*part[1:3]), part[0]]


print(f"{'':22}  {'page':70}  rows")
for line in re.findall(r"^\| (c\d\d \| .*) \|$", page, re.MULTILINE)[: len(claims)]:
    claim, _, *cells, verdict = line.split(" | ")
    numbers = results[claim][0] if claim in results else re.findall(NUMBER, claims.paper_value[claim])
    compare(claim, [*re.findall(NUMBER, " ".join(cells)), verdict], [*numbers, verdicts[claim]])
print(f"{'no rows yet':22}  {', '.join(claim for claim in claims.index if claim not in results)}")
given = [word for word in (*WEAKEST_LAST[:2], UNDER, *WEAKEST_LAST[2:]) if counted[word]]
for claim, then in re.findall(r"^\| (c\d\d) \| ([^|]*) \| [^|]* \| [^|]* \| [^|]* \|$", page, re.MULTILINE):
    if then != "Not yet run":
        compare(f"{claim}, before", [then], [before[claim]])
by_verdict = "; ".join(rf"{word.lower()} {NUMBER}" for word in given)
for name, pattern, computed in [
    ("claims", f"{NUMBER} claims were taken from it", [len(claims)]),
    ("epochs, seeds", f"for {NUMBER} epochs with seeds {NUMBER} to {NUMBER}", [LAST, seeds[0], seeds[-1]]),
    ("with a verdict", f"{NUMBER} of {NUMBER} claims have a verdict", [judged, len(claims)]),
    ("by verdict", rf"\({by_verdict}\)", [counted[word] for word in given]),
    ("branches", f"each backbone's settings for {NUMBER} branches", [MANY]),
    (
        "ViT minus CNN",
        f"{NUMBER} points, with an interval of {NUMBER} to {NUMBER}; the paper has {NUMBER}",
        effect_of(differ),
    ),
    (
        "CNN",
        f"CNN is hurt at the settings for {NUMBER} branches, where alpha is {NUMBER}, {EFFECT}",
        [MANY, settings_of["cnn", MANY]["alpha"], *effect_of(at_end["cnn", MANY])],
    ),
    (
        "CNN, one branch",
        f"those for one, where it is {NUMBER}: {EFFECT}",
        [settings_of["cnn", 1]["alpha"], *effect_of(at_end["cnn", 1])],
    ),
    ("CNN, one, last epochs", f"mean of the last {NUMBER} epochs it is {EFFECT}", [TAIL, *effect_of(tail["cnn", 1])]),
    ("ViT", f"ViT's gain at {NUMBER} branches is {EFFECT}", [MANY, *effect_of(at_end["vit", MANY])]),
    ("ViT, last epochs", f"mean of the last {NUMBER} epochs {EFFECT}", [TAIL, *effect_of(tail["vit", MANY])]),
    ("CNN, random labels", f"(?<=it loses about as much, ){OWN}", control("cnn", branch_labels="random")),
    ("CNN, prior", f"(?<=no harm is clear: ){OWN}", control("cnn", branch_bias="prior")),
    ("branches of controls", f"At the settings for {NUMBER} branches the harm", [MANY]),
    ("ViT, random labels", f"epoch, by {OWN}(?=, less)", control("vit", "best", branch_labels="random")),
    (
        "ViT, random, last ones",
        f"mean of the last {NUMBER} epochs no gain is clear, {OWN}",
        [TAIL, *control("vit", "last20", branch_labels="random")],
    ),
    ("branches, other pair", f"the ViT at {NUMBER} branches and the CNN at one", [MANY]),
    (
        "attention",
        f"at epoch {NUMBER} its entropy is lower with them, {EFFECT}",
        [table14.index[0][1], *results["c26"][0][1:4], results["c26"][0][0]],
    ),
    (
        "fewer images",
        f"With {NUMBER} and {NUMBER} images the effect has the opposite sign to the paper's, which at {NUMBER} is not",
        [*opposite, *(images for images in opposite if table8.p_value[images] >= 0.05)],
    ),
    ("few images", f"with {NUMBER} to {NUMBER} images per class", [sizes[0], sizes[-1]]),
    (
        "Plain on few images",
        f"Plain is {NUMBER} to {NUMBER}% below the paper's there",
        [f(below[images] for images in sizes) for f in (min, max)],
    ),
    ("open", rf"open\.\*\* {NUMBER} claims", [len(claims) - judged]),
]:
    match = re.search(pattern, abstract)
    compare(name, match.groups() if match else ["not on the page"], computed)
    abstract = re.sub(pattern, "", abstract, count=1)
for claim, verdict in re.findall(r"(c\d\d), \*([^*]+)\*", abstract):
    compare(claim, [verdict], [verdicts[claim]])

rolled = judge_attention("rollout")
lows = [interval(*of["cnn", 1][1:])[1] for of in (at_end, tail)]
less_flat = []  # than the number of weights makes a step of one length
for arch in one_surface:
    weights = surfaces[surfaces.arch == arch].groupby("redundancy").parameters.first()
    left = deviations.loc["norm", arch].div(deviations.loc["norm", arch][0], axis=0).mean()
    less_flat += list(left - np.sqrt(weights[0] / weights))
steeper = [change(*(of_total.loc["variance", arch][n] for n in (0, MANY)), own=True) for arch in ("mlp", "vit")]
for words, holds in {
    "The paper's own numbers contradict c12 too (by Table 3), and c10 and c35, which ours leave open": (
        verdicts["c12"] == "Contradicted"
        and verdicts["c10"] == verdicts["c35"] == "Inconclusive"
        and table2.average_similarity["mlp"] * change(*table3.loc["mlp"].iloc[2:]) < 0
        and table2.min_similarity["vit"] < 0
        and table1.p_value.max() >= 0.001
    ),
    "no difference is clear, and half of the paper's difference is excluded": rule(*named) == "Paper's size excluded",
    "by about half as much": abs(differ[1].mean() / differ[0] - 0.5) < 0.1,
    "A gain there is not settled": min(lows) < 0,
    "a loss of half the paper's size is excluded either way": min(lows) > at_end["cnn", 1][0] / 2,
    "positive in every row of Table 1": all(interval(mean, len(table1))[1] > 0 for mean in cosines.values()),
    "the same function for every N": idle == 0,
    "by almost as much as the number of weights predicts": all(-0.001 < gap < 0.025 for gap in less_flat),
    "By the mean of the layers' maps they do not": all(
        np.prod(results[f"c{number}"][0][:2]) < 0 for number in range(22, 28)
    ),
    "the changes have the paper's signs": all(np.prod(numbers[:2]) > 0 for numbers, *_ in rolled.values()),
    "that of the peak is clear and of the paper's size": rolled["c24"][1] == "Reproduced",
    "no change is clear, and half of the paper's sizes is excluded (c22 to c25)": all(
        verdicts[f"c{number}"] == "Paper's size excluded" for number in range(22, 26)
    ),
    "Along directions of unit variance the total loss of the MLP and the ViT varies more": all(
        interval(changes, 1)[1] > 0 for changes in steeper
    ),
    "fitted equally it is not clearly ahead": all(at_equal_fit[images][1] < 0 for images in sizes),
    "it loses about as much": abs(control("cnn", branch_labels="random")[0] / control("cnn")[0] - 1) < 0.1,
    "no harm is clear": control("cnn", branch_bias="prior")[2] > 0,
    "less than with true ones": control("vit", "best", asymmetric=True, branch_labels="random")[2] < 0,
    "where with true ones it is": control("vit", "last20")[1] > 0,
    "lower for the MLP": all(gap < 0 for (arch, _), gap in plain_gap.items() if arch == "mlp"),
    "higher for the CNN": all(gap > 0 for (arch, _), gap in plain_gap.items() if arch == "cnn"),
}.items():
    holds = "holds" if holds else "DOES NOT HOLD"
    print(f"{words:94}  {holds if words in abstract else 'IS NOT ON THE PAGE'}")
    wrong += [] if words in abstract and holds == "holds" else [words]
rest = re.findall(r"\S*\d\S*", re.sub(r"c\d\d|CIFAR-\d+|Table \d+|\d{4}-\d\d-\d\d", "", abstract))
compare("not recomputed", rest, [])
print("by other choices for c06 and Tables 3 to 6 and 14, which no verdict uses:")
for name, judged_so in {
    "within a point of the best": judge_trajectories(share=1, points=0.01),
    "the best of 100 epochs": judge_trajectories(best=True),
    **{f"settings of N = {n}": judge_trajectories(n=n) for n in (1, 10)},
    "ViT at 20, CNN at 1 branch": {"c06": judge(named)},
    **{f"both at N = {n}": {"c06": judge(against(at_end["vit", n], at_end["cnn", n]))} for n in (1, 7, 10)},
    "attention of the first layer": judge_attention("blocks.0.attention"),
    "attention of the last layer": judge_attention("blocks.5.attention"),
    "attention by rollout": rolled,
    "three panels of Figure 9": judge_attention(panels=3),
    "of each seed's own Plain": judge_trajectories(own=True) | judge_attention(own=True),
}.items():
    for claim, (numbers, verdict, _) in judged_so.items():
        if verdict != verdicts[claim]:
            print(f"{name:28}  {claim}  {' '.join(f'{number:+.1f}' for number in numbers[:-1]):36}  {verdict}")
for claim, arch in (("c18", "mlp"), ("c19", "cnn")):
    own = flatter(arch, own=True)
    if rule(*own) == "Reproduced" and verdicts[claim] != UNDER:
        name, numbers = "of each network's own Plain", [own[0], *interval(*own[1:])]
        print(f"{name:28}  {claim}  {' '.join(f'{number:+.1f}' for number in numbers):36}  {UNDER}")
for arch, precision in itertools.product(("cnn", "vit"), ("bf16", "tf32")):  # TF32 waits for its rows
    settings, drops = settings_of[arch, MANY] | {"precision": precision}, []
    for side in (settings | {"alpha": 0, "redundancy": 0}, settings):
        with contextlib.suppress(KeyError):
            drops.append((curves("test_accuracy", **side).diff().loc[51:] <= -0.02).sum().mean())
    if drops:
        shown = " and ".join(f"{number:.1f}" for number in drops)
        print(f"epochs after 50 that cost a run two points or more: {arch} in {precision}, {shown} (Plain, Asymmetric)")
hours = load("runs", ["seconds", "device"]).groupby("device").seconds.sum() / 3600
print("hours of training:", ", ".join(f"{spent:.1f} on one {device}" for device, spent in hours.items()))
for dataset, rates in searches.query("redundancy == 0 and weight_decay == 0.001").groupby("dataset"):
    chosen = [rates.learning_rate[rates[by].idxmax()] for by in ("best", "last")]
    print("learning rate of the search on {}, by the best epoch and by the last: {:g}, {:g}".format(dataset, *chosen))
print(f"different: {', '.join(wrong) or 'nothing'}")
sys.exit(bool(wrong))
