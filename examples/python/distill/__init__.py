"""The parts of the distillation example, in reading order.

llama.py    the transformer that teacher and student both are
teacher.py  the real teacher: SmolLM2-135M-Instruct, read from a GGUF file, and its tokenizer
corpus.py   the text: windows of tokens from Django's documentation
student.py  the small transformer, made of some of the teacher's blocks
losses.py   what the student is asked to match
worker.py   a Laneway worker: answers tickets with what the teacher says
train.py    a Laneway student: the training loop
events.py   what each process writes down while it runs
picture.py  the page that shows a run
"""
