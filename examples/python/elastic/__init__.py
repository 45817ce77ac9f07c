"""The parts of the elastic example, in reading order: one training run, stopped and resumed on other numbers of ranks.

corpus.py   the text: Python's own reference and library, a tokenizer trained on them, and the recipe
feeds.py    two loaders under one interface: Laneway's, and a standard one
train.py    one rank's training loop, with its checkpoint
ranks.py    how processes of ranks meet and part, and what is told of one that failed
cast.py     starts the ranks of a run as processes, and watches them
record.py   what the runs wrote down, and what is checked of it
canvas.py   one way to draw, as SVG and as PNG
picture.py  the picture: losses, and a barcode of the global batches
page.py     the page around it
play.py     all runs of both loaders, one after the other
"""
