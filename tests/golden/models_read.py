"""models_read.py FOLDER ...: what transformers computes with models that tlua saved: each FOLDER has the model, and
answers.safetensors with ids, logits and a greedy continuation. A FOLDER may hold adapters for PEFT instead. Exits 77 where
transformers is not installed."""
import json
import os
import sys
import warnings

try:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(missing)
    sys.exit(77)

for folder in sys.argv[1:]:
    if os.path.exists(folder + "/adapter_config.json"):
        base = json.load(open(folder + "/adapter_config.json"))["base_model_name_or_path"]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*adapter keys")  # missing or unexpected ones
            model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    else:
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), (folder, report)
    want = load_file(folder + "/answers.safetensors")
    with torch.no_grad():
        difference = (model.eval()(want["ids"]).logits - want["logits"]).abs().max().item()
    assert difference < 1e-4, (folder, difference)
    new = want["greedy"].shape[1] - want["ids"].shape[1]
    greedy = model.generate(want["ids"], max_new_tokens=new, do_sample=False, pad_token_id=0,
                            attention_mask=torch.ones_like(want["ids"]))
    assert torch.equal(greedy, want["greedy"]), folder
    print("ok", folder, difference)
