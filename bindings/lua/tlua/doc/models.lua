-- Language models: tl.models.
return {
  ["tl.models"] = [[
Language models under Hugging Face's names: their files load, their config.json's keys are the options. load, gpt2,
llama. A model has generate, stream, loss, cache, save_pretrained beside what every nn.Module has.]],
  ["tl.models.load"] = [[
models.load(path, {device=, dtype="float32"}): the model in a folder with config.json and model.safetensors (or
model.safetensors.index.json), or of one .safetensors file with config.json beside it, in eval mode. A tensor that is
missing, unexpected or of another shape is an error, and so is a value in config.json that is not supported.]],
  ["tl.models.gpt2"] = [[
models.gpt2{vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, n_inner=4*n_embd,
activation_function="gelu_new", resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, layer_norm_epsilon=1e-5,
initializer_range=0.02, tie_word_embeddings=true, bias=true}: GPT-2 (Radford et al. 2019) with fresh weights, an
nn.Module. model(ids) takes ids (B, T) of 0..vocab_size-1 and gives logits (B, T, V); model:loss(ids, targets) the mean
cross entropy. bias=false leaves out the biases of all layers (Hugging Face has no such key).]],
  ["tl.models.llama"] = [[
models.llama{vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
num_key_value_heads=num_attention_heads, head_dim=hidden_size/num_attention_heads, hidden_act="silu",
max_position_embeddings=2048, initializer_range=0.02, rms_norm_eps=1e-6, rope_theta=10000, rope_scaling=,
attention_bias=false, attention_dropout=0, mlp_bias=false, tie_word_embeddings=false}: Llama (Touvron et al. 2023), as
models.gpt2. rope_scaling: {rope_type="linear", factor=} or {rope_type="llama3", factor=,
low_freq_factor=, high_freq_factor=, original_max_position_embeddings=}.]],
  ["tl.models.CausalLM.loss"] = [[
model:loss(ids, targets, {ignore_index=-100, label_smoothing=0, reduction="mean"}): the cross entropy of targets (B, T)
with the logits of ids (B, T), which are never all in memory at once.]],
  ["tl.models.CausalLM.generate"] = [[
model:generate(ids, {max_new_tokens=20, temperature=1, top_k=0, top_p=1, eos_token_id=, pad_token_id=, generator=,
use_cache=true}): ids (B, T) with the new tokens behind them, (B, T + n). temperature=0 takes the likeliest token; top_k
draws from so many, top_p from the fewest that have that probability together (1: all). Ends early when every row has met
eos_token_id (an id or a list; default: the config's; false: none); rows that ended are filled with pad_token_id. More
tokens than the model takes are an error.]],
  ["tl.models.CausalLM.stream"] = [[
for id in model:stream(ids, options) do ... end: generate's new tokens one at a time: a number when ids is (1, T), else a
list of one number a row.]],
  ["tl.models.CausalLM.gradient_checkpointing"] = [[
model:gradient_checkpointing(true): keeps the input of each layer only, and computes the rest anew in backward: memory for
time (tl.utils.checkpoint). Returns the model.]],
  ["tl.models.CausalLM.cache"] = [[
model:cache(): an empty key-value cache. model(ids, cache) goes on behind the tokens in it, inside tl.no_grad.]],
  ["tl.models.CausalLM.save_pretrained"] = [[
model:save_pretrained(folder): writes config.json and model.safetensors, as transformers reads them.]],

  ["tl.lora"] = [[
Low-rank adapters (Hu et al. 2022) for nn.Linear: y = W x + (alpha / r) B A x; A and B are trained, W rests. apply,
parameters, merge, remove, save, load. They are children lora_A and lora_B of the layer they adapt.]],
  ["tl.lora.apply"] = [[
lora.apply(model, {r=8, alpha=8, dropout=0, target_modules={"c_attn", ...}}): adds adapters to the nn.Linear layers whose
name is in the list or ends with one of it behind a dot (a string is a Lua pattern for the whole name), and freezes
everything else. At first the model computes what it did. Returns the model.]],
  ["tl.lora.parameters"] = "lora.parameters(model): the adapters' parameters, for an optimizer.",
  ["tl.lora.merge"] = [[
lora.merge(model): adds the adapters to the weights and takes them away; what was frozen trains again. Returns it.]],
  ["tl.lora.remove"] = "lora.remove(model): takes the adapters away: the model is what it was before lora.apply.",
  ["tl.lora.save"] = [[
lora.save(model, folder, {base_model=""}): writes adapter_config.json and adapter_model.safetensors, as PEFT reads them.
base_model: where PEFT finds the adapted model.]],
  ["tl.lora.load"] = [[
lora.load(model, folder): lora.apply as adapter_config.json says, with the adapters of adapter_model.safetensors (PEFT's
names). What it asks for that is not supported (DoRA, rsLoRA, ranks by layer ...) is an error.]],
}
