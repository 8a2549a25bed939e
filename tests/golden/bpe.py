# bpe.py: makes bpe_gpt2.json, bpe_llama.json and bpe.lua with Hugging Face's tokenizers (pip install tokenizers): two small
# tokenizers that are trained on bpe.txt, and the ids that they give for texts that are easy to get wrong.
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
text = open(os.path.join(here, "bpe.txt"), encoding="utf-8").read()


def train(tokenizer, size, special):
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


# As GPT-2: its pattern, one special token.
gpt2 = Tokenizer(models.BPE())
gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
train(gpt2, 700, ["<|endoftext|>"])
gpt2.save(os.path.join(here, "bpe_gpt2.json"), pretty=False)

# As Llama 3 and Qwen 2: a pattern of its own, whole pieces before merges, NFC, a token before the text, more tokens.
pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
llama = Tokenizer(models.BPE(ignore_merges=True))
llama.normalizer = normalizers.NFC()
llama.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(pattern), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
])
train(llama, 600, [])
llama.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|end|>"])
llama.add_tokens([AddedToken("tokenizer", normalized=True), AddedToken("<|e|>", normalized=False), "caf\u00e9"])
llama.post_processor = processors.Sequence([
    processors.ByteLevel(trim_offsets=False),
    processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                  special_tokens=[("<|begin_of_text|>", llama.token_to_id("<|begin_of_text|>"))]),
])
llama.save(os.path.join(here, "bpe_llama.json"), pretty=False)

texts = [
    "", " ", "  ", "\n", "a", "Hello, world!", "The quick brown fox doesn't jump.",
    "it's they're we've I'm you'll he'd can't", "IT'S THEY'RE WE'VE I'M YOU'LL HE'D CAN'T", "'\u017f '\u212a l'\u00e9t\u00e9",
    "it\u2019s", "''s's", "a  b   c    d", "   lead", "trail   ", "a\n\n\nb", " \n \n ", "\t\tx\t= 1;\r\n\r\n  y", "\u00a0x\u00a0\u00a0y",
    "a\u0085b\u1680c\u180ed\u2028e\u2029f\u202fg\u3000h\u200bi", "1234567890 12 123 1234 \u0663\u0664\u0665 \u216b \u00bd \u00b2 \u4e09",
    "x=y+1;if(a!=b){c[i]->d++;}", "_under_score__ __init__", "caf\u00e9 cafe\u0301 na\u00efve A\u030angstr\u00f6m \u212b",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00", "\u0915\u094d\u0937 \u0939\u093f\u0928\u094d\u0926\u0940", "\u0627\u0644\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0651\u0629", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002", "\u4e2d\u6587\uff0c\u6587\u5b57\uff01", "\U00020000\U0002a6d6", "\U0001f469\u200d\U0001f4bb\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e8\U0001f1ed \U0001f44d\U0001f3fd\U0001f44d", "\x00\x01\x02\x1b[0m\x7f", "\x0b\x0c\x1c\x1d\x1e\x1f", "\ufeffbom \ufffd \uffff \U0010ffff",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endof", "<|end_of_text|>", "x <|begin_of_text|> y<|end|>z",
    "<|e|><|e|> <|end|>", "a tokenizer and tokenizers", "the cafe\u0301 caf\u00e9s", " " * 300, " " * 300 + "x", "a" * 300,
    "ab" * 150, "\n" * 100, "1" * 100, "=" * 77, "don't" * 20, text[:400], text[-700:],
]


def quote(s):
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else "\\%03d" % b for b in s.encode("utf-8")) + '"'


with open(os.path.join(here, "bpe.lua"), "w") as out:
    out.write("-- bpe.lua: made by bpe.py: {text, ids of bpe_gpt2.json, ids of bpe_llama.json}\nreturn {\n")
    for s in texts:
        a, b = gpt2.encode(s), llama.encode(s)
        lists = ["{" + ", ".join(map(str, e.ids)) + "}" for e in (a, b)]
        out.write("  {%s, %s, %s},\n" % (quote(s), *lists))
    out.write("}\n")
