"""What the commands do, as functions: values in, results out.

    common.py     what they share: the spec of a model and data, the training of runs, where results go
    compare.py    `compare`: Plain and Asymmetric of a model, in pairs             `asymtrain run`
    tune.py       `tune`: which branches for this model, if any?       `asymtrain tune`
    search.py     `search`: learning rate, weight decay and alpha by validation    `asymtrain search`

`asymtrain.compare` and the others are these. The commands parse options and print; they call the functions here.
"""
