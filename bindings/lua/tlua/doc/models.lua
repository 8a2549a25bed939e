-- Language models: tl.models.
return {
  ["tl.models"] = [[
Language models under Hugging Face's names: their tensors load, their config.json's keys are the options.]],
  ["tl.models.gpt2"] = [[
tl.models.gpt2{vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, n_inner=4*n_embd,
activation_function="gelu_new", resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, layer_norm_epsilon=1e-5,
initializer_range=0.02, tie_word_embeddings=true, bias=true}: GPT-2 (Radford et al. 2019) with fresh weights, an
nn.Module. model(ids) takes ids (B, T) of 0..vocab_size-1 and gives logits (B, T, V); model:loss(ids, targets) the mean
cross entropy. bias=false leaves out the biases of all layers (Hugging Face has no such key).]],
}
