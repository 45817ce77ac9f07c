"""``Loader``: the same global batches on any number of ranks, before and after a resume, from threads, forks and data workers."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from lanes_data import EOS, RECIPE, WORDS, words, write_data

from laneway import Batch, Function, Loader, Recipe, _functions, _native, errors, global_hash

STEPS = 40


def hashes(recipe, ranks=1, steps=STEPS, state=None, **tuning):
    """The hash of each global batch, put together from all ranks' batches, and the ranks' merged state at the end."""
    loaders = [Loader(recipe, rank, ranks, framework="numpy", **tuning) for rank in range(ranks)]
    found = []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    for _ in range(steps):
        parts = []
        for loader in loaders:
            batch = next(loader)
            parts.append(batch.hashes)
            parts += [next(loader).hashes for _ in range(batch.microbatches - 1)]
        found.append(global_hash(parts))
    return found, merged([loader.state_dict() for loader in loaders])


def merged(states):
    """Nested dicts, key by key, as through JSON files."""
    whole = {}
    for state in (json.loads(json.dumps(s)) for s in states):
        whole["meta"] = state["meta"]
        whole.setdefault("lanes", {}).update(state["lanes"])
    return whole


@pytest.fixture(scope="module")
def uninterrupted(lanes_folder):
    return hashes(lanes_folder / "recipe.toml", steps=3 * STEPS)[0]


@pytest.mark.parametrize(("ranks", "tuning"), [(2, {}), (4, {"threads": 2, "microbatch_size": 1}), (8, {"threads": 0, "prefetch": 0}), (3, {"uneven": True})])
def test_any_number_of_ranks_gives_the_same_global_batches(lanes, uninterrupted, ranks, tuning):
    assert hashes(lanes, ranks, **tuning)[0] == uninterrupted[:STEPS]


@pytest.mark.parametrize("chain", [(1, 2, 4), (4, 1, 2), (2, 8, 1)])
def test_a_resume_on_other_ranks_through_json_goes_on_with_the_same_batches(lanes, uninterrupted, chain):
    state, found = None, []
    for ranks in chain:
        part, state = hashes(lanes, ranks, state=state)
        found += part
    assert found == uninterrupted


def test_states_of_several_ranks_may_be_given_as_a_list_and_a_missing_lane_is_named(lanes, uninterrupted):
    two = [Loader(lanes, rank, 2, framework="numpy") for rank in range(2)]
    for loader in two:
        next(loader)
    states = [loader.state_dict() for loader in two]
    whole = Loader(lanes, framework="numpy")
    whole.load_state_dict(states)
    assert global_hash(next(whole).hashes) == uninterrupted[1]
    with pytest.raises(errors.NotFound, match="lane 4"):
        whole.load_state_dict(states[0])
    assert global_hash(next(whole).hashes) == uninterrupted[2], "a refused state leaves the loader where it was"


def test_another_recipe_is_refused_by_the_fields_name(lanes, lanes_folder):
    state = Loader(lanes, framework="numpy").state_dict()
    other = Loader(Recipe.parse(RECIPE.replace("seed = 7", "seed = 8"), lanes_folder), framework="numpy")
    other.load_state_dict(state)  # not open yet: checked when it opens
    with pytest.raises(errors.Refused, match="seed"):
        next(other)


def test_seek_goes_ahead_and_back(lanes, uninterrupted):
    loader = Loader(lanes, framework="numpy")
    loader.seek(11)
    assert global_hash(next(loader).hashes) == uninterrupted[11] and loader.step == 12
    loader.seek(3)
    assert global_hash(next(loader).hashes) == uninterrupted[3]


def test_the_tensors_are_the_documents_that_the_provenance_names(lanes):
    loader = Loader(lanes, framework="numpy")
    for _ in range(10):
        batch = next(loader)
        for piece in batch.provenance:
            document = [int(w[1:]) for w in words(piece["dataset"], int(piece["document"])).split()] + [EOS]
            row, at, end = piece["row"], piece["offset"], piece["offset"] + piece["length"]
            first, last = piece["start"], piece["start"] + piece["length"]
            assert batch.input_ids[row, at:end].tolist() == document[first:last]
            assert batch.positions[row, at:end].tolist() == list(range(first, last))
            assert len(set(batch.segment_ids[row, at:end].tolist())) == 1
        assert (batch.labels[:, -1] == -100).all() and batch.num_valid_tokens == (batch.labels != -100).sum() == batch.loss_mask.sum()
        inner = batch.labels[:, :-1] != -100
        assert (batch.labels[:, :-1][inner] == batch.input_ids[:, 1:][inner]).all()
        assert batch.cu_seqlens[-1] == batch.input_ids.size and batch.max_seqlen == np.diff(batch.cu_seqlens).max()
    assert loader.locate(1, 45).endswith("b.jsonl line 6") and loader.read(1, 45) == words(1, 45)
    assert loader.decode(batch.input_ids[0][:2]).split() == [f"w{i}" if i < WORDS else "<eos>" for i in batch.input_ids[0][:2]]
    assert set(dict(batch)) == {"input_ids", "labels", "positions", "segment_ids", "loss_mask", "cu_seqlens"}


def test_tensors_stay_readable_past_batch_loader_and_close_and_cannot_be_written_through_numpy(lanes):
    loader = Loader(lanes, framework="numpy")
    batch = next(loader)
    ids, copy = batch.input_ids, batch.input_ids.copy()
    loader.close()
    with pytest.raises(errors.Closed):
        next(loader)
    del batch, loader
    assert (ids == copy).all()
    with pytest.raises(ValueError, match="read-only"):
        ids[0, 0] = 1


def test_torch_tensors_share_the_same_memory(lanes):
    torch = pytest.importorskip("torch")
    batch = next(Loader(lanes, framework="torch"))
    assert batch.input_ids.dtype == torch.int64 and batch.segment_ids.dtype == torch.int32 and batch.loss_mask.dtype == torch.bool
    assert batch.input_ids.data_ptr() == batch.numpy("input_ids").ctypes.data
    assert torch.equal(batch.input_ids, torch.from_numpy(batch.numpy("input_ids").copy()))


def test_a_stream_that_ends_is_counted_with_progress_and_ends(lanes_folder, lanes):
    told = []
    finite = RECIPE.replace("weight = 0.5", 'weight = 0.5\nexhausted = "redistribute"')
    loader = Loader(Recipe.parse(finite, lanes_folder), framework="numpy", progress=lambda *args: told.append(args))
    batches = list(loader)
    assert len(batches) == loader.steps > 10 and next(loader, None) is None
    documents = {(int(p["dataset"]), int(p["document"])) for b in batches for p in b.provenance}
    assert len(documents) == 370
    assert told and all(0 <= done <= total for _, done, total in told)


def test_functions_run_on_texts_and_a_failing_one_says_why(lanes_folder, lanes):
    recipe = Recipe.parse('functions = ["double 1", "short 1"]\n' + RECIPE, lanes_folder)
    functions = [Function("double 1", map=lambda text: text + " " + text), Function("short 1", filter=lambda text: len(text.split()) < 60)]
    loader = Loader(recipe, functions=functions, framework="numpy")
    for batch, _ in zip(loader, range(5), strict=False):
        for piece in batch.provenance:
            assert len(words(piece["dataset"], int(piece["document"])).split()) < 30
    assert loader.stats["filtered"] > 0

    def fails(text):
        raise KeyError("no such thing")

    with pytest.raises(errors.DataError, match="no such thing") as failed:
        next(Loader(recipe, functions=[Function("double 1", map=fails), functions[1]], framework="numpy"))
    assert "in fails" in str(failed.value) and "_functions.py" not in str(failed.value), "from the user's first line on"
    with pytest.raises(errors.InvalidArgument, match="short 1"):
        next(Loader(recipe, functions=functions[:1]))


def test_a_mixture_can_be_changed_ahead_and_too_early_is_an_error_that_says_when(lanes, uninterrupted):
    loader = Loader(lanes, framework="numpy")
    for _ in range(20):
        next(loader)
    with pytest.raises(errors.InvalidArgument, match="step"):
        loader.set_mixture({"wiki": 1.0, "news": 0.0}, from_step=2)
    with pytest.raises(ValueError, match="every dataset"):
        loader.set_mixture({"wiki": 1.0}, from_step=60)
    loader.set_mixture({"wiki": 1.0, "news": 0.0}, from_step=60)
    batches = [next(loader) for _ in range(100)]
    assert [global_hash(b.hashes) for b in batches[:40]] == uninterrupted[20:60]
    assert {int(p["dataset"]) for p in batches[-1].provenance} == {0}


def test_recipes_are_read_from_path_text_and_dict_and_a_misspelt_key_is_named(lanes, lanes_folder):
    keys = {
        "seed": 7,
        "dataset": [
            {"name": "wiki", "paths": [lanes_folder / "wiki.jsonl"], "weight": 0.5},
            {"name": "news", "paths": str(lanes_folder / "news"), "weight": 0.5},
        ],
        "mixture": {"unit": "tokens", "schedule": []},
        "tokenizer": {"path": lanes_folder / "tokenizer.json", "special_tokens": "eos"},
        "pack": {"max_length": 32, "algorithm": "wrap", "pad_token_id": None},
        "shuffle": {"buffer_size": 64, "seed": 42},
        "batch": {"global_batch": [[0, 8]]},
    }
    recipe = Recipe.load(lanes)
    assert Recipe.from_dict(keys) == recipe == Recipe.parse(RECIPE) == pickle.loads(pickle.dumps(recipe)) == Recipe.parse(recipe.to_toml())
    assert "seed" in recipe.difference(Recipe.from_dict(keys | {"seed": 8}))
    with pytest.raises(errors.InvalidArgument, match="max_length"):
        Recipe.from_dict(keys | {"pack": {"max_lenght": 32}})
    with pytest.raises(TypeError, match=r"pack\.max_length is a object"):
        Recipe.from_dict(keys | {"pack": {"max_length": object()}})
    with pytest.raises(ValueError, match="rank is 2; expected 0 to 1"):
        Loader(lanes, 2, 2)


def test_threads_share_a_loader_and_each_batch_goes_to_one_of_them(lanes, uninterrupted):
    loader = Loader(lanes, framework="numpy")
    found, lock = {}, threading.Lock()

    def take():
        for _ in range(10):
            batch = next(loader)
            with lock:
                found[batch.step] = global_hash(batch.hashes)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[step] for step in range(40)] == uninterrupted[:40]


def test_a_forked_child_gets_an_error_from_an_open_loader_and_opens_one_that_is_not(lanes, uninterrupted):
    opened, fresh = Loader(lanes, framework="numpy"), Loader(lanes, framework="numpy")
    batch = next(opened)
    ids = batch.input_ids
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                next(opened)
            except errors.Forked as error:
                if "fork before its first use" in str(error) and ids.shape == (8, 32) and (ids >= 0).all():
                    code = 0 if global_hash(next(fresh).hashes) == uninterrupted[0] else 2
            del opened, fresh, batch, ids
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert global_hash(next(opened).hashes) == uninterrupted[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_gives_the_same_batches_in_the_same_order(lanes, uninterrupted, workers):
    torch = pytest.importorskip("torch")
    loader = Loader(lanes, microbatch_size=4)
    data = torch.utils.data.DataLoader(loader.to_torch_dataset(), batch_size=None, num_workers=workers)
    batches = [batch for batch, _ in zip(data, range(20), strict=False)]
    assert [(b.step, b.microbatch) for b in batches] == [(i // 2, i % 2) for i in range(20)]
    assert [global_hash([a.hashes, b.hashes]) for a, b in zip(batches[::2], batches[1::2], strict=True)] == uninterrupted[:10]
    assert isinstance(batches[0].labels, torch.Tensor) and isinstance(batches[0], Batch)


def test_an_open_loader_is_not_pickled_and_a_fresh_one_keeps_its_place(lanes, uninterrupted):
    loader = Loader(lanes, framework="numpy")
    loader.seek(5)
    assert global_hash(next(pickle.loads(pickle.dumps(loader))).hashes) == uninterrupted[5]
    next(loader)
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(loader)


SLOW = """
import sys, time, signal
from laneway import Function, Loader
def slow(text):
    time.sleep(0.05)
    return text
loader = Loader({recipe!r}, functions=[Function("slow 1", map=slow)], threads=2, framework="numpy")
print("start", flush=True)
try:
    for batch in loader: pass
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("end", ["", 'exhausted = "stop"'])
def test_ctrl_c_ends_a_wait_and_sigterm_the_process(lanes, lanes_folder, tmp_path, ending, end):
    write_data(tmp_path)
    recipe = tmp_path / "slow.toml"
    recipe.write_text('functions = ["slow 1"]\n' + RECIPE.replace("weight = 0.5", f"weight = 0.5\n{end}"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    program = [sys.executable, "-c", SLOW.format(recipe=str(recipe))]
    with subprocess.Popen(program, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "start\n"
        time.sleep(0.5)  # into the wait: the first batch takes seconds
        sent = time.monotonic()
        process.send_signal(ending)
        out, _ = process.communicate(timeout=300)
    if ending == signal.SIGINT:
        assert out.startswith("interrupted") and process.returncode == 0
        print(f"Ctrl-C noticed after {float(out.split()[1]) - sent:.3f} s")
    else:
        assert process.returncode == -signal.SIGTERM


INLINE = """
import sys, time
from laneway import Function, Loader
wait = 0.05
def slow(text):
    time.sleep(wait)
    return text
loader = Loader({recipe!r}, functions=[Function("slow 1", map=slow)], threads=0, prefetch=0, framework="numpy")
loader.step
print("start", flush=True)
try:
    next(loader)
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
wait = 0
print(*(int(h) for _ in range(5) for h in next(loader).hashes))
"""


def test_ctrl_c_in_a_function_on_the_callers_thread_ends_the_wait_and_fails_nothing(lanes, lanes_folder, tmp_path, uninterrupted):
    write_data(tmp_path)
    recipe = tmp_path / "slow.toml"
    recipe.write_text('functions = ["slow 1"]\n' + RECIPE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, "-c", INLINE.format(recipe=str(recipe))], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "start\n"
        time.sleep(0.5)  # into a function: the first batch takes ten seconds
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        noticed = process.stdout.readline().split()
        out, _ = process.communicate(timeout=300)
    assert noticed[0] == "interrupted" and process.returncode == 0
    print(f"Ctrl-C noticed after {float(noticed[1]) - sent:.3f} s")
    hashes = np.array(out.split(), np.uint64).reshape(5, 8)
    assert [global_hash(step) for step in hashes] == uninterrupted[:5], "it goes on as if nothing had been"


def test_a_ctrl_c_that_came_with_a_batch_comes_again_when_the_batch_was_got():
    _functions._interrupts.append(KeyboardInterrupt())
    _functions.raise_soon()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)
    assert time.monotonic() - begin < 59, "and does not wait until the sleep is over"
    assert not _functions.interrupted()


def test_what_a_loader_is_given_wrongly_is_named(lanes):
    loader = Loader(lanes, framework="numpy")
    for call, kind, message in [
        (lambda: Loader(""), ValueError, "recipe is ''; expected the path of a TOML file"),
        (lambda: Loader(b"x"), TypeError, "recipe is a bytes"),
        (lambda: loader.load_state_dict(None), errors.InvalidArgument, "a state is a dict with 'meta' and 'lanes'"),
        (lambda: loader.load_state_dict([]), errors.InvalidArgument, "got no state"),
        (lambda: loader.next(timeout_s=float("nan")), ValueError, "timeout_s is nan; expected seconds"),
        (lambda: loader.next(timeout_s=-1), ValueError, "timeout_s is -1; expected seconds"),
    ]:
        with pytest.raises(kind, match=message):
            call()
    assert loader.next(timeout_s=float("inf")).step == 0


@pytest.mark.parametrize(("program", "lines"), [("elastic_min", 15), ("node_min", 30)])
def test_the_same_small_program_prints_the_same_in_every_language(lanes, folder, tmp_path, program, lines):
    root = Path(__file__).parents[3]
    library = _native.find_library()
    soname = f"liblaneway.so.{_native.ABI_VERSION}"
    (tmp_path / soname).symlink_to(library)
    commands = {"python": [sys.executable, root / "examples" / "python" / f"{program}.py"]}
    for language, compilers, suffix, standard in [("c", ("cc", "gcc"), "c", "-std=c11"), ("cpp", ("c++", "g++"), "cpp", "-std=c++17")]:
        compiler = next(filter(None, map(shutil.which, compilers)), None)
        if compiler is None:
            print(f"SKIPPED: no compiler for {language}")
            continue
        made, source = tmp_path / f"{program}_{language}", root / "examples" / language / f"{program}.{suffix}"
        subprocess.run([compiler, standard, "-I", root / "include", source, "-o", made, library], check=True)
        commands[language] = [made]
    rust = root / "target" / "release" / "examples" / program
    if rust.is_file():
        commands["rust"] = [rust]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "LD_LIBRARY_PATH": str(tmp_path)}
    said = {}
    for language, command in commands.items():
        done = subprocess.run([*command, lanes, "30"], env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{language}: {done.stdout}{done.stderr}"
        said[language] = done.stdout
    assert said["python"].endswith("identical\n") and said["python"].count("step ") == lines
    assert len(set(said.values())) == 1, said


def test_states_are_merged_key_by_key_and_may_hold_more_than_is_owned(lanes, uninterrupted):
    """Nested dicts, as a sharded checkpoint gives them: any rank of another number takes the union, or its own lanes and any others."""
    _, union = hashes(lanes, 4)
    assert set(union) == {"meta", "lanes"} and set(union["lanes"]) == {str(lane) for lane in range(8)}
    found = []
    ranks = [Loader(lanes, rank, 2, framework="numpy") for rank in range(2)]
    for rank, loader in enumerate(ranks):
        own = {"meta": union["meta"], "lanes": {k: v for k, v in union["lanes"].items() if int(k) // 4 == rank}}
        more = {"meta": union["meta"], "lanes": {k: v for k, v in union["lanes"].items() if int(k) // 4 == rank or k == str(7 - 7 * rank)}}
        for state in (own, more, union, [own, more]):
            loader.load_state_dict(state)
        found.append(next(loader).hashes)
        lacking = {"meta": union["meta"], "lanes": {k: v for k, v in own["lanes"].items() if int(k) % 4 != 2}}
        with pytest.raises(errors.NotFound, match=f"lane {4 * rank + 2}"):
            loader.load_state_dict(lacking)
    assert global_hash(found) == uninterrupted[STEPS]
