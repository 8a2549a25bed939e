#!/usr/bin/env python3
"""bench_tokenizer.py [--tlua PROGRAM] [FILE ...]: tl.text.BPE beside Hugging Face's tokenizers and tiktoken (pip install
tokenizers tiktoken), each on one thread: learning a vocabulary, encoding. Checks that merges and ids are the same, and
prints a table for docs/text.md. Without a FILE: the C and Lua sources of this tree, as one."""
import argparse
import glob
import json
import os
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tiktoken  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

ROUNDS, VOCAB = 3, 8192
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")

TLUA = """
local tl, json = require "tlua", require "tlua.json"
local text, pattern, folder = tl.data.text(arg[1]), arg[2], arg[3]
local clock = os.clock
local t = clock()
local tok = tl.text.BPE.train { text = text, vocab_size = tonumber(arg[4]), pattern = pattern ~= "" and pattern or nil }
local train = clock() - t
tok:save(folder .. "/tlua.json")
local reference = tl.text.BPE.load(folder .. "/reference.json")
local best, ids = math.huge
for i = 1, 3 do
  local tok = tl.text.BPE.load(folder .. "/reference.json") -- with an empty cache
  t = clock()
  ids = tok:encode(text)
  best = math.min(best, clock() - t)
end
assert(reference:decode(ids) == text)
tl.data.write_tokens(folder .. "/tlua.bin", ids)
print(json.encode { train = train, encode = best })
"""


def best(f):
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        result = f()
        times.append(time.process_time() - start)
    return min(times), result


def learn(text, pattern):
    tokenizer = Tokenizer(models.BPE())
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=VOCAB, min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def as_tiktoken(tokenizer, pattern):
    names = json.loads(tokenizer.to_str())["model"]["vocab"]
    letters = {}
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    hidden = [b for b in range(256) if b not in visible]
    for b in visible:
        letters[chr(b)] = b
    for i, b in enumerate(hidden):
        letters[chr(256 + i)] = b
    ranks = {bytes(letters[c] for c in name): rank for name, rank in names.items()}
    return tiktoken.Encoding("own", pat_str=pattern or GPT2, mergeable_ranks=ranks, special_tokens={})


def compare(name, text, pattern, program):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text")
        open(path, "w", encoding="utf-8", newline="").write(text)
        hf_train, tokenizer = best(lambda: learn(text, pattern))
        tokenizer.save(os.path.join(folder, "reference.json"))
        script = os.path.join(folder, "bench.lua")
        open(script, "w").write(TLUA)
        ours = json.loads(subprocess.check_output(
            [program, script, path, pattern or "", folder, str(VOCAB)], env=dict(os.environ, OMP_NUM_THREADS="1")))
        whole, ids = best(lambda: tokenizer.encode(text).ids)
        lines = text.splitlines(keepends=True)
        batch, _ = best(lambda: tokenizer.encode_batch_fast(lines))
        encoding = as_tiktoken(tokenizer, pattern)
        tik, _ = best(lambda: encoding.encode_ordinary(text))
        data = open(os.path.join(folder, "tlua.bin"), "rb").read()
        same = list(memoryview(data).cast("H")) == ids
        models_of = [json.load(open(os.path.join(folder, f)))["model"] for f in ("reference.json", "tlua.json")]
        merges = models_of[0]["merges"] == models_of[1]["merges"] and models_of[0]["vocab"] == models_of[1]["vocab"]
        megabytes = len(text.encode()) / 1e6
        rate = lambda t: "%.1f MB/s" % (megabytes / t)  # noqa: E731
        print("| %s | %.2f s | %.2f s | %s | %s, %s | %s | %s |" % (
            name, ours["train"], hf_train, rate(ours["encode"]), rate(whole), rate(batch), rate(tik),
            "%s, %s" % ("same" if merges else "OTHER", "same" if same else "OTHER")), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tlua", default=os.path.join(ROOT, "build", "tlua"))
    parser.add_argument("files", nargs="*")
    o = parser.parse_args()
    texts = [(os.path.basename(f), open(f, encoding="utf-8", newline="").read()) for f in o.files]
    if not texts:
        paths = sorted(p for folder in ("engine", "kernels", "bindings", "tests") for p in
                       glob.glob(os.path.join(ROOT, folder, "**", "*.*"), recursive=True) if p.endswith((".c", ".lua")))
        texts = [("sources", "".join(open(p, encoding="utf-8", newline="").read() for p in paths))]
    print("| text | tlua learns | tokenizers learns | tlua encodes | tokenizers encodes (whole, by lines) "
          "| tiktoken encodes | merges, ids |\n|---|---|---|---|---|---|---|")
    for name, text in texts:
        for label, pattern in (("GPT-2's pattern", None), ("Llama 3's", LLAMA3)):
            compare("%s, %.1f MB, %s" % (name, len(text.encode()) / 1e6, label), text, pattern, o.tlua)


main()
