"""The paper's claims as the page shows them: verdict first, the headline before all others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from asymtrain.lab.paper.contradictions import contradictions, single_activation
from asymtrain.lab.paper.evidence import Quantity
from asymtrain.lab.paper.instrument_contradictions import Contradiction
from asymtrain.lab.paper.result import RecipeResult
from asymtrain.lab.paper.rule import BAND, NULL, WEAKEST_LAST, JudgedPart
from asymtrain.lab.paper.strips import strip
from asymtrain.lab.paper.verdicts import Judgement
from asymtrain.lab.paper.wording import number, ours_words, paper_words, part_words
from asymtrain.lab.runs import NAMES

HEADLINE = "c06"
MEANINGS: Mapping[str, str] = {
    "Reproduced": f"the interval excludes 0 in the paper's sign and meets {BAND[0]:g} to {BAND[1]:g} times its number",
    "Sign only": "the interval excludes 0 in the paper's sign and misses that band",
    "Only under": "the primary reading of the paper fails, another passes, corrected for every reading and cell",
    "Inconclusive": "the interval allows more than one answer",
    "Null": f"the interval lies within {NULL['change']:g}% of 0",
    "Contradicted": "the interval excludes 0 in the other sign",
    "Not yet run": "not in full: fewer seeds or epochs than the claim asks for, missing cells, or other data standing "
    "in; what did run stands beside it as preliminary",
}


@dataclass(frozen=True)
class ShownClaim:
    """One claim in words: the paper's number, ours with interval and n, verdict, sentence, and where it is tested.

    Of a claim with several parts both numbers are of the part that decides, which `of` names.
    """

    judgement: Judgement
    paper: str
    ours: str
    of: str
    interval: str
    so_far: str
    tags: str
    strip: Markup
    recipe: str
    place: str

    @property
    def look(self) -> str:
        """The verdict as a class of the style sheet."""
        return slug(self.judgement.verdict)


@dataclass(frozen=True)
class Filter:
    """A choice of claims: its tag, its words, and how many claims have it."""

    tag: str
    words: str
    count: int


def shown_claims(results: Sequence[RecipeResult], judgements: Sequence[Judgement]) -> list[ShownClaim]:
    """The claims that these recipes test: the headline, then by verdict, then in the paper's order."""
    recipes = {name: result for result in results for name in result.claims}
    order = list(MEANINGS)
    wanted = [one for one in judgements if one.claim.id in recipes]
    wanted.sort(key=lambda one: (one.claim.id != HEADLINE, order.index(one.verdict)))
    return [_shown(one, recipes[one.claim.id]) for one in wanted]


def filters(claims: Sequence[ShownClaim]) -> list[Filter]:
    """All claims, then each verdict that occurs, then what the numbers so far would say."""
    verdicts: Counter[str] = Counter(one.judgement.verdict for one in claims)
    early = Counter(one.judgement.preliminary for one in claims if one.judgement.preliminary)
    found = [Filter("", "All", len(claims))]
    found += [Filter(slug(name), name, verdicts[name]) for name in MEANINGS if verdicts[name]]
    found += [Filter(f"so-far-{slug(name)}", f"so far {name.lower()}", early[name]) for name in WEAKEST_LAST
              if early[name]]  # fmt: skip
    return found


def shown_contradictions(results: Sequence[RecipeResult]) -> list[Contradiction]:
    """The paper's own contradictions, and what our runs say of single activation where they can."""
    sentence, holds = single_activation(_identities(results))
    found = list(contradictions())
    if holds is not None:
        found.append(Contradiction("what N can do under single activation", "our runs", sentence, 0.0, holds))
    return found


def slug(words: str) -> str:
    """Words as a class or tag."""
    return words.lower().replace(" ", "-")


def _shown(one: Judgement, result: RecipeResult) -> ShownClaim:
    part = _deciding(one)
    interval = ""
    if part is not None and part.low is not None and part.high is not None:
        interval = f"{number(part.low, part).removesuffix(' points')} to {number(part.high, part)}"
    several = part is not None and len(one.claim.parts) > 1
    tags = [slug(one.verdict), *([f"so-far-{slug(one.preliminary)}"] if one.preliminary else [])]
    return ShownClaim(
        one,
        paper_words(one.claim, part) if part is not None and several else one.claim.paper_value.replace(";", "; "),
        "" if part is None else ours_words(part),
        part_words(part) if part is not None and several else "",
        interval,
        one.preliminary or "",
        " ".join(tags),
        Markup() if part is None else strip(part),
        result.name,
        result.title.partition(":")[0],
    )


def _deciding(one: Judgement) -> JudgedPart | None:
    """The part whose numbers the judgement carries."""
    ruling = "Reproduced" if one.verdict == "Only under" else one.preliminary or one.verdict
    return next((part for part in one.parts if part.ruling == ruling), None)


def _identities(results: Sequence[RecipeResult]) -> dict[str, Quantity]:
    """How far weights of N = 1 and N = 20 are apart, from the last column of the recipe `identity`."""
    archs = {name: arch for arch, name in NAMES.items()}
    rows = [row for one in results if one.name == "identity" for table in one.tables for row in table.rows]
    return {
        archs[row[0].text]: Quantity(f"identity/{archs[row[0].text]}", (row[-1].value,), 1, row[-1].spec_ids, (0,))
        for row in rows
        if row[-1].value is not None
    }
