"""The first ten minutes: from text and a few labels to a model of one's own, beside what is simpler.

    pt.quickstart(out="runs/quickstart", budget="6m")

`plan` says what a device can do, `texts` what is learnt from, `begin` how the network starts, `tuning` how it is
adapted and judged, `story` what the numbers mean, `work` runs it all and `stages` shows how far it is.
"""
