"""The parts of the demonstration of teachers as operators, in reading order: text → tokens → rows → what a teacher says of them, in one recipe.

corpus.py   the text: Django's documentation, the teacher's tokenizer, and the recipe
worker.py   a Laneway worker: makes the row that a ticket names, and asks the teacher
train.py    one rank's training loop, with its checkpoint
cast.py     one run: broker, workers and ranks as processes, some of them killed on the way
record.py   what the runs wrote down, and what is checked of it
picture.py  the picture: the student's losses, and a barcode of the global batches with who made what
page.py     the page around it
play.py     all runs, one after the other
"""
