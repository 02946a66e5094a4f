"""The specs behind the numbers of the reproduction: each with its fields and a place on the page to link to."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from asymtrain.lab.runs import AUXILIARY, DEFAULTS, Run, RunSpec
from asymtrain.lab.studies.paper.recipe import Recipe
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.study import Scope, with_every_reading
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.models import display_name

NOT_RUN = "not yet run"
# Anchors of listings and sets: short, since a page has thousands of links to them, and never a recipe's name.
LISTING, SET = "_", "_s"
# Named if they differ between specs, even with the usual value.
ALWAYS = ("arch", "dataset", "seed", "alpha", "learning_rate", "weight_decay")


@dataclass(frozen=True)
class SpecsUsed:
    """Specs by the recipe that names them, and by id the outcome of each in a few words.

    `others` are specs of readings that are not shown, by id: a verdict may depend on them.
    """

    specs: Mapping[str, tuple[RunSpec, ...]] = field(default_factory=dict)
    outcomes: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, RunSpec] = field(default_factory=dict)


Spec = tuple[str, int | None, str]  # its id, its seed, its outcome


@dataclass(frozen=True)
class Listing:
    """Specs that differ only in their seed: what they are, their own fields, and each of them."""

    anchor: str
    title: str
    fields: str
    specs: tuple[Spec, ...]

    @property
    def run(self) -> list[Spec]:
        return [spec for spec in self.specs if spec[2] != NOT_RUN]

    @property
    def waiting(self) -> str:
        """The seeds that were not run: nobody looks for the id of a run that does not exist."""
        return ", ".join(str(seed) for _, seed, outcome in self.specs if outcome == NOT_RUN)


Part = tuple[Listing, tuple[Spec, ...]]  # a listing, and some of its specs


@dataclass(frozen=True)
class SpecSet:
    """The specs behind one number, under the listings that they belong to."""

    anchor: str
    parts: tuple[Part, ...]

    @property
    def count(self) -> int:
        return sum(len(specs) for _, specs in self.parts)


@dataclass(frozen=True)
class SpecIndex:
    """All specs of a page."""

    common: tuple[tuple[str, str], ...]  # fields that all specs share, and values that a listing may leave out
    listings: tuple[Listing, ...]  # each spec once
    sets: Mapping[frozenset[str], SpecSet]  # the specs behind each number, by their ids

    def anchor(self, ids: Collection[str]) -> str:
        """Where the specs behind a number are listed; empty for a number of the paper."""
        return self.sets[frozenset(ids)].anchor if ids else ""

    @property
    def several(self) -> list[SpecSet]:
        """The sets that are not one whole listing."""
        return [behind for behind in self.sets.values() if behind.anchor.startswith(SET)]

    @property
    def count(self) -> int:
        return sum(len(listing.specs) for listing in self.listings)


def read_ids(recipes: Iterable[Recipe], study: Scope, snapshot: Snapshot) -> set[str]:
    """The ids of the runs that these recipes read, under the readings that are shown and those that are judged."""
    # A part of a recipe is made from the whole recipe.
    whole, scopes = [RECIPES[recipe.name] for recipe in recipes], (study, with_every_reading(study))
    return {spec.id for recipe in whole for scope in scopes for spec in recipe.needs(scope, snapshot).specs}


def specs_behind(recipes: Iterable[Recipe], study: Scope, snapshot: Snapshot) -> SpecsUsed:
    specs, outcomes, others = {}, dict[str, str](), dict[str, RunSpec]()
    every = with_every_reading(study)
    for recipe in recipes:
        needs = recipe.needs(study, snapshot)
        for run in snapshot.of(recipe.needs(every, snapshot).specs):
            others[run.spec.id] = run.spec
            outcomes[run.spec.id] = _outcome(run)
        measurements = needs.measurements
        measured = {each.spec.id for each in measurements if snapshot.values(each.spec, each.name) is not None}
        all_specs = dict.fromkeys([*needs.specs, *(each.spec for each in measurements)])
        specs[recipe.name] = tuple(all_specs)
        for spec in all_specs:
            if spec.id in snapshot.runs:
                outcomes[spec.id] = _outcome(snapshot.runs[spec.id])
            elif spec.id in measured:
                outcomes[spec.id] = "measured"
            else:
                outcomes.setdefault(spec.id, NOT_RUN)
    return SpecsUsed(specs, outcomes, others)


def index_specs(used: Iterable[Sequence[str]], behind: SpecsUsed) -> SpecIndex:
    """The index of all named specs, with a set for each of the groups of ids in `used`, in that order."""
    groups = list(dict.fromkeys(frozenset(ids) for ids in used if ids))
    specs_by_id = {spec.id: spec for specs in behind.specs.values() for spec in specs}
    specs_by_id |= {name: behind.others[name] for ids in groups for name in sorted(ids) if name in behind.others}
    unknown_ids = sorted({name for ids in groups for name in ids} - set(specs_by_id))
    counts = {name: Counter(getattr(spec, name) for spec in specs_by_id.values()) for name in DEFAULTS}
    # The most frequent value of each field that differs.
    usual = {name: count.most_common(1)[0][0] for name, count in counts.items() if len(count) > 1}
    alike: dict[tuple[object, ...], list[RunSpec]] = {}
    for spec in specs_by_id.values():
        alike.setdefault(tuple(getattr(spec, name) for name in DEFAULTS if name != "seed"), []).append(spec)
    listings: list[Listing] = []
    for specs in alike.values():
        rows = [(spec.id, spec.seed, behind.outcomes.get(spec.id, "")) for spec in specs]
        title = f"{display_name(specs[0].arch)}, {specs[0].dataset}, {specs[0].variant.capitalize()}"
        own_fields = _own_fields(specs[0], usual)
        listings.append(Listing(f"{LISTING}{len(listings) + 1}", title, own_fields, tuple(rows)))
    if unknown_ids:
        unknown = tuple((name, None, "") for name in unknown_ids)
        anchor = f"{LISTING}{len(listings) + 1}"
        listings.append(Listing(anchor, "Other specs", "their fields were not given", unknown))
    # Most numbers come from all seeds of one setting: they link to its listing.
    whole = {frozenset(name for name, _, _ in listing.run): listing.anchor for listing in listings}
    sets = {ids: SpecSet(whole.get(ids, f"{SET}{i}"), tuple(_parts(ids, listings))) for i, ids in enumerate(groups, 1)}
    first = next(iter(specs_by_id.values()), RunSpec())
    common = [(_words(name), _value(getattr(first, name))) for name in DEFAULTS if name not in (*usual, "seed")]
    unnamed = [
        (_words(name), f"{_value(value)} where not named") for name, value in usual.items() if name not in ALWAYS
    ]
    return SpecIndex(tuple([*common, *unnamed] if specs_by_id else ()), tuple(listings), sets)


def _parts(ids: frozenset[str], listings: Sequence[Listing]) -> Iterator[Part]:
    for listing in listings:
        if specs := tuple(spec for spec in listing.specs if spec[0] in ids):
            yield listing, specs


def _outcome(run: Run) -> str:
    if run.outcome == "diverged":
        return run.outcome
    if run.test_accuracy is not None:
        return f"test {run.test_accuracy:.3f}"
    best = run.best_validation
    return "" if best is None or best.validation_accuracy is None else f"validation {best.validation_accuracy:.3f}"


def _own_fields(spec: RunSpec, usual: Mapping[str, object]) -> str:
    """The spec's fields that differ from the page's usual values; Plain has no auxiliary ones."""
    hidden = {"arch", "dataset", "seed", *(AUXILIARY if spec.redundancy == 0 else ())}
    names = [name for name, value in usual.items() if name in ALWAYS or getattr(spec, name) != value]
    return "; ".join(f"{_words(name)} {_value(getattr(spec, name))}" for name in names if name not in hidden)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, tuple):  # options
        return ", ".join(f"{name} {setting}" for name, setting in value) or "default"
    return f"{value:g}" if isinstance(value, float) else str(value)
