"""The paper as data and recipes: its printed numbers, its claims, what is run for them, and the verdicts.

How a number goes, each step a file:

    numbers, claims          what the paper prints (`printed/*.csv`) and claims
    study                    how it is reproduced: readings, sizes, seeds; words of the paper become specs
    running, measurements    trains and measures what recipes need, into a store
    snapshot                 what the store holds, read once
    recipes/                 which rows a table or figure rests on, and how they become it (`recipe`)
      comparisons, searches    Plain against Asymmetric, seed by seed; settings that a search chose
      tables, figures          the columns, cells and lines that recipes share
    evidence, verdicts       numbers for each seed under the label of a printed cell; the rule, and its words
    contradictions           where the paper's own numbers disagree with its text
    texts.toml               sentences of verdicts and contradictions; numbers are filled in
    page, spec_index         one HTML file, with every table, figure and spec behind a number
"""
