"""The practice study: do branches help models that people use, under recipes that people use?

docs/practice-protocol.md is the protocol in words. How a number goes, each step a file:

    models       what timm has no option for
    protocol     models, data, recipes, seeds and candidates as data; the blocks and the specs of each
    selection    which candidates go on, from validation accuracies alone
    running      trains what a block still needs, wave by wave, into a store
    analysis     differences to Plain, verdicts, epochs to Plain's accuracy, calibration
    page         tables, the forest plot, one HTML file
"""
