"""What other libraries call our settings and values: a name that nobody here knows is answered with ours."""

# Name elsewhere -> ours, the likeliest first; "section.key" where the name alone would be ambiguous.
ALIASES: dict[str, tuple[str, ...]] = {
    name: ours
    for ours, names in {
        # settings
        ("learning_rate",): ("lr", "max_lr", "peak_lr", "base_lr"),
        ("per_device_train_batch_size",): ("batch_size", "bs", "train_batch_size", "micro_batch_size", "batch"),
        ("gradient_accumulation_steps",): ("grad_accum", "accumulation_steps", "accumulate_grad_batches", "grad_acc"),
        ("num_train_epochs",): ("epochs", "num_epochs", "n_epochs", "max_epochs"),
        ("max_steps",): ("steps", "num_steps", "iters", "max_iters", "train_steps", "num_train_steps"),
        ("warmup_steps",): ("warmup", "warmup_iters", "num_warmup_steps", "warmup_ratio"),
        ("lr_scheduler_type",): ("scheduler", "lr_scheduler", "schedule", "lr_schedule"),
        ("optim",): ("optimizer", "optimiser", "opt"),
        ("weight_decay",): ("wd",),
        ("adam_beta2",): ("beta2",),
        ("max_grad_norm",): ("grad_clip", "clip", "clip_grad", "gradient_clip_val", "grad_norm"),
        ("torch_compile",): ("compile",),
        ("output_dir",): ("out_dir", "output", "save_dir", "output_path"),
        ("bf16",): ("precision", "dtype", "mixed_precision", "amp"),
        ("report_to",): ("tracker", "trackers", "logger"),
        ("every_steps",): ("eval_every", "eval_interval", "eval_steps", "validation_steps"),
        ("sequence_length", "max_length"): (
            *("seq_len", "seq_length", "context_length", "block_size", "max_seq_len", "max_seq_length", "ctx_len"),
            *("n_ctx", "context_size", "max_length", "max_tokens"),
        ),
        ("vocab_size",): ("vocab", "vocabulary_size", "n_vocab"),
        ("hidden_size",): ("n_embd", "d_model", "dim", "width", "hidden_dim", "embed_dim", "model_dim"),
        ("num_hidden_layers",): ("n_layer", "n_layers", "num_layers", "layers", "depth"),
        ("num_attention_heads",): ("n_head", "n_heads", "num_heads", "heads"),
        ("num_key_value_heads",): ("n_kv_heads", "n_kv_head", "num_kv_heads", "kv_heads"),
        ("intermediate_size",): ("d_ff", "ffn_dim", "n_inner", "ff_dim", "mlp_dim"),
        ("hidden_dropout",): ("dropout", "resid_pdrop", "dropout_rate"),
        ("position_encoding",): ("pos_emb", "position_embedding_type", "positional_encoding", "pos_encoding"),
        ("num_experts",): ("n_experts", "experts", "num_local_experts", "n_routed_experts"),
        ("data.files",): ("path", "data_path", "data_dir", "data_files", "train_file", "train_files"),
        ("validation_files",): ("validation_file", "eval_file", "valid_files"),
        ("dataset",): ("dataset_name", "hub_dataset"),
        ("model.name_or_path",): ("name_or_path", "checkpoint", "pretrained", "model_name_or_path", "model_name"),
        ("text_field",): ("text_column", "text_key"),
        # values
        ("byte_bpe",): ("bpe", "bytelevel_bpe", "byte_level_bpe", "bbpe"),
        ("bpe_byte_fallback",): ("sentencepiece_bpe", "spm_bpe", "byte_fallback", "byte_fallback_bpe", "metaspace_bpe"),
        ("unigram", "bpe_byte_fallback"): ("sentencepiece", "spm"),
        ("wordpiece",): ("wp", "word_piece", "bert"),
        ("rotary",): ("rope",),
        ("learned",): ("absolute",),
        ("none",): ("nope",),
        ("accuracy",): ("acc",),
        ("perplexity",): ("ppl",),
        ("matthews_correlation",): ("mcc", "matthews"),
        ("spearman",): ("spearmanr",),
        ("pearson",): ("pearsonr",),
        ("chrf",): ("chrf++",),
        ("causal", "decoder"): ("clm", "lm", "causal_lm", "next_token", "gpt"),
        ("masked",): ("mlm", "masked_lm", "masked_language_modeling"),
        ("span_corruption",): ("t5_denoising",),
        ("denoising",): ("bart_denoising", "text_infilling", "infilling"),
        ("mixture_of_denoisers",): ("ul2", "mod", "denoisers"),
        ("prefix_lm",): ("prefix", "prefixlm", "prefix_language_modeling"),
        ("fill_in_the_middle",): ("fim", "infill"),
        ("masked_image",): ("mim", "mae", "simmim"),
        ("sequence_classification",): ("classification", "text_classification", "sentiment", "classify"),
        ("sequence_regression",): ("regression", "similarity", "sts", "stsb"),
        ("token_classification",): ("ner", "tagging", "pos", "pos_tagging"),
        ("question_answering",): ("qa", "squad", "extractive_qa"),
        ("multiple_choice",): ("swag",),
        ("labelled_token",): ("label_all_tokens",),
        ("entity_f1",): ("seqeval",),
        ("text_to_text",): ("seq2seq", "summarization", "text2text"),
        ("multi_task",): ("multitask", "mtl"),
        ("instruction_tuning",): ("sft", "chat"),
        ("preference",): ("dpo",),
        ("decoder",): ("gpt2", "llama", "causallm"),
        ("encoder",): ("roberta",),
        ("seq2seq",): ("t5", "encoder_decoder", "bart"),
        ("moe",): ("mixtral", "mixture_of_experts"),
        ("vit",): ("vision", "image"),
        ("adamw",): ("adam",),
    }.items()
    for name in names
}


def ours_for(name: str) -> tuple[str, ...]:
    """Our names for a name of other libraries, without sections; empty where it has none."""
    return tuple(alias.rpartition(".")[2] for alias in ALIASES.get(name.lower().replace("-", "_"), ()))
