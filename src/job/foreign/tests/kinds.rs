//! Commands and configurations that people bring along, kind by kind: the value in the job, or the reason for a refusal.

use ft_trainer::settings::TrainSettings;

use super::*;

fn train(flags: &str) -> TrainSettings {
    job(&format!("{SMALL} {flags}")).train
}

/// The job of a configuration of DeepSpeed's, with the notes.
fn with_config(flags: &str, config: &str) -> (TrainSettings, Vec<String>) {
    let command = format!("{SMALL} {flags} --deepspeed ds.json");
    let translated = translate(&command, &|_| Ok(config.to_owned())).unwrap_or_else(|refused| panic!("{config}: {}", refused.what));
    let job = JobSpec::parse(&translated.text, "job.toml").unwrap_or_else(|error| panic!("{error}\n{}", translated.text));
    (job.train, translated.notes)
}

fn refused_config(flags: &str, config: &str) -> String {
    let command = format!("{SMALL} {flags} --deepspeed ds.json");
    translate(&command, &|_| Ok(config.to_owned()))
        .map_or_else(|refused| refused.what, |job| panic!("{config} became\n{}", job.text))
}

/// The command is copied from a page, a chat or a manual.
#[test]
fn a_command_is_read_as_a_shell_reads_it() {
    let rest = "--model_name_or_path gpt2 --do_train --output_dir out";
    let of = |command: String| translate(&command, NOTHING).map(|job| job.text).map_err(|refused| refused.what);
    let windows = of(format!(r#"python run_clm.py {rest} --train_file "C:\texts\a.txt""#)).unwrap();
    assert!(windows.contains(r"'C:\texts\a.txt'") || windows.contains(r#""C:\\texts\\a.txt""#), "{windows}");
    for program in [r#""C:\texts\run_clm.py""#, r"'.\examples\run_clm.py'", "C:/texts/run_clm.py", r#"-m "a\run_clm""#] {
        let found = of(format!("python {program} {rest} --train_file a.txt"));
        assert!(found.is_ok(), "{program}: {found:?}");
    }
    let stripped = of(format!(r"python C:\texts\run_clm.py {rest} --train_file a.txt")).unwrap_err();
    assert!(stripped.contains("a shell reads C:textsrun_clm.py, without any backslash"), "{stripped}");
    let escaped = of(format!(r#"python run_clm.py {rest} --train_file "a \"b\".txt""#)).unwrap();
    assert!(escaped.contains(r#"'a "b".txt'"#) || escaped.contains(r#""a \"b\".txt""#), "{escaped}");
    assert!(of(format!("$ python run_clm.py {rest} --train_file a.txt")).is_ok(), "a prompt");
    for typed in ["“a.txt”", "‘a.txt’", "a.txt –seed 1"] {
        let refused = of(format!("python run_clm.py {rest} --train_file {typed}")).unwrap_err();
        assert!(refused.contains("as text processors write it"), "{refused}");
    }
    let job = "run_clm.py --model_name_or_path gpt2 --train_file a.txt --do_train --output_dir out";
    let short = of(format!("torchrun --nnode=2 --nproc_per=4 {job} --gradient_accumulation 3")).unwrap();
    assert!(
        short.contains("nodes = 2") && short.contains("processes_per_node = 4") && short.contains("gradient_accumulation = 3"),
        "{short}"
    );
    assert!(of(format!("torchrun --nproc_per_node=4 {job} --per_device 3")).is_err(), "it may stand for several");
}

#[test]
fn a_length_may_be_epochs_or_a_share() {
    const EPOCH: Length = Length::Epochs(1.0);
    let steps = Length::Steps;
    // Of warm-up, evaluations, checkpoints and log.
    for (flags, expected) in [
        ("", [steps(0), steps(0), steps(500), steps(500)]),
        ("--eval_strategy epoch --save_strategy epoch --warmup_ratio 0.03", [Length::Percent(3.0), EPOCH, EPOCH, steps(500)]),
        ("--evaluation_strategy epoch --logging_strategy epoch --eval_steps 9", [steps(0), EPOCH, steps(500), EPOCH]),
        ("--warmup_steps 0.07 --save_steps 0.25", [Length::Percent(7.0), steps(0), Length::Percent(25.0), steps(500)]),
        ("--warmup_steps 100 --warmup_ratio 0.5", [steps(100), steps(0), steps(500), steps(500)]),
        ("--warmup_ratio 0.5 --warmup_steps 100", [steps(100), steps(0), steps(500), steps(500)]),
        ("--warmup_ratio 1 --warmup_steps 0", [Length::Percent(100.0), steps(0), steps(500), steps(500)]),
        ("--warmup_ratio 0.0", [steps(0), steps(0), steps(500), steps(500)]),
        (
            "--eval_strategy steps --eval_steps 0.1 --logging_steps 0.001",
            [steps(0), Length::Percent(10.0), steps(500), Length::Percent(0.1)],
        ),
        ("--eval_strategy steps --logging_strategy epoch", [steps(0), steps(500), steps(500), EPOCH]),
        ("--save_strategy no --save_steps 9", [steps(0), steps(0), steps(0), steps(500)]),
        ("--save_steps -1 --logging_steps 0", [steps(0), steps(0), steps(0), steps(500)]),
        ("--save_steps 1e3 --max_steps 1e5", [steps(0), steps(0), steps(1000), steps(500)]),
    ] {
        let found = train(flags);
        assert_eq!([found.warmup_steps, found.eval_every, found.checkpoint_every, found.log_every], expected, "{flags}");
    }
    let best = train("--eval_strategy epoch --save_strategy best --load_best_model_at_end");
    assert!(best.keep_best && best.checkpoint_every == EPOCH);
    for (flags, problem) in [
        ("--warmup_ratio 1.5", "--warmup_ratio: 1.5 is no share of the run"),
        ("--save_steps 2.5", "--save_steps: `2.5` is not a whole number"),
        ("--save_strategy best", "--save_strategy: best needs evaluations on the way"),
        ("--save_strategy epochs", "--save_strategy: `epochs` does not exist here; did you mean `epoch`?"),
    ] {
        let found = problems(&format!("{SMALL} {flags}"));
        assert!(found.contains(problem), "{flags} gave {found}");
    }
}

#[test]
fn the_whole_line_of_the_issue_is_translated() {
    let command = format!(
        "{SMALL} --eval_strategy epoch --save_strategy epoch --warmup_ratio 0.03 --resume_from_checkpoint runs/checkpoint-500 \
         --auto_find_batch_size --no_dataloader_pin_memory --report_to wandb tensorboard --ddp_find_unused_parameters False"
    );
    let notes = notes(&command);
    tells(
        &notes,
        "--resume_from_checkpoint: a job goes on from its own newest checkpoint by itself; optimizer and step of runs/checkpoint-500",
    );
    tells(&notes, "--auto_find_batch_size: a run that runs out of memory goes on with fewer sequences");
    tells(&notes, "--report_to: event files for TensorBoard are always written");
}

#[test]
fn schedules_have_their_settings() {
    let least = train("--lr_scheduler_type cosine_with_min_lr --learning_rate 1e-4 --lr_scheduler_kwargs '{\"min_lr_rate\": 0.1}'");
    assert!((least.min_learning_rate - 1e-5).abs() < 1e-12 && least.schedule == Schedule::Cosine);
    let power = train("--lr_scheduler_type polynomial --lr_scheduler_kwargs '{\"lr_end\": 1e-6, \"power\": 2.0}'");
    assert!((power.min_learning_rate - 1e-6).abs() < 1e-15 && (power.power - 2.0).abs() < 1e-15);
    let stable = train(
        "--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs '{\"num_decay_steps\": 100, \"decay_type\": \"linear\", \"min_lr_ratio\": 0.1}'",
    );
    assert_eq!((stable.schedule, stable.decay_steps), (Schedule::Wsd, Some(100.into())));
    assert!((stable.min_learning_rate - 5e-6).abs() < 1e-15);
    assert_eq!(train("--lr_scheduler_type constant --warmup_steps 100").warmup_steps, 0.into(), "constant has none there");
    assert_eq!(train("--lr_scheduler_type constant_with_warmup --warmup_steps 100").warmup_steps, 100.into());
    for (flags, problem) in [
        ("cosine_with_min_lr", "cosine_with_min_lr needs min_lr or min_lr_rate"),
        ("warmup_stable_decay --lr_scheduler_kwargs '{\"num_decay_steps\": 9}'", "warmup_stable_decay falls along a cosine"),
        ("cosine --lr_scheduler_kwargs '{\"num_cycles\": 2}'", "num_cycles: a cosine falls once here; give 0.5"),
        ("cosine_with_restarts --lr_scheduler_kwargs '{\"num_cycles\": 2}'", "num_cycles: a cosine falls once here; give 1"),
        ("cosine --lr_scheduler_kwargs '{\"min_lrr\": 2}'", "min_lrr: ftctl does not know this name; did you mean `min_lr`?"),
        ("cosine --lr_scheduler_kwargs 2", "`2` is not a JSON object"),
        ("inverse_sqrt", "`inverse_sqrt` does not exist here; values: linear"),
    ] {
        let found = problems(&format!("{SMALL} --lr_scheduler_type {flags}"));
        assert!(found.contains(problem), "{flags} gave {found}");
    }
}

#[test]
fn a_configuration_and_a_tokenizer_may_lie_in_a_directory() {
    let mine = r#"{"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "vocab_size": 50257, "embd_pdrop": 0,
        "resid_pdrop": 0, "attn_pdrop": 0.2}"#;
    let translated = |flags: &str, config: &str| {
        let read = |file: &str| if file == "./my/config.json" { Ok(config.to_owned()) } else { Err(format!("there is no {file}")) };
        translate(&format!("run_clm.py --train_file a.txt {flags}"), &read)
    };
    let text = translated("--config_name ./my --tokenizer_name ./my", mine).expect("a job").text;
    let job = JobSpec::parse(&text, "job.toml").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let model = job.model;
    assert_eq!([model.layers, model.heads, model.width, model.context], [3, 4, 64, 256].map(Some));
    assert_eq!((job.train.block_size, job.initial_weights), (256, None), "a block fits the model");
    assert_eq!([job.train.dropout, job.train.attention_dropout].map(|rate| (rate * 10.0).round() as u32), [0, 2]);
    assert_eq!(job.data.expect("text").tokenizer.directory.as_deref(), Some("./my"));

    let of = |flags: &str| translated(flags, mine).map(|job| JobSpec::parse(&job.text, "job.toml").expect("valid"));
    let tokenizer = |flags: &str| of(flags).expect("a job").data.expect("text").tokenizer.directory;
    assert_eq!(tokenizer("--model_name_or_path ./my").as_deref(), Some("./my"), "the weights' own");
    assert_eq!(tokenizer("--model_name_or_path ./my --tokenizer_name openai-community/gpt2-large"), None);
    assert_eq!(tokenizer("--model_name_or_path gpt2"), None, "the published one is part of ftctl");
    for (flags, config, problem) in [
        (
            "--config_name ./my --block_size 512",
            mine,
            "--block_size: a block of 512 tokens is longer than the model's context of 256",
        ),
        ("--config_name ./their", mine, "--config_name: there is no ./their/config.json"),
        ("--config_name ./my", "{", "--config_name: ./my/config.json: EOF"),
        ("--config_name ./my", r#"{"model_type": "llama"}"#, "--config_name: ./my: model_type = \"llama\" is not supported"),
        (
            "--config_name ./my",
            r#"{"vocab_size": 99, "layer_norm_epsilon": 1e-6}"#,
            "layer_norm_epsilon = 0.000001: a model that begins",
        ),
    ] {
        let found = translated(flags, config).expect_err(flags).what;
        assert!(found.contains(problem), "{flags} gave {found}");
    }
    // That of weights, too.
    assert_eq!(of("--model_name_or_path ./my").expect("a job").train.block_size, 256);
    let longer = translated("--model_name_or_path ./my --block_size 4096", mine).expect_err("too long").what;
    assert!(longer.contains("--block_size: a block of 4096 tokens is longer than the model's context of 256"), "{longer}");
    // The tokenizer may be for longer texts, or for shorter ones: run_clm.py asks it first.
    let block = |context: u32, longest: &str, flags: &str| {
        let read = |file: &str| match file {
            "./my/config.json" => Ok(format!(r#"{{"n_positions": {context}, "vocab_size": 50257}}"#)),
            "./my/tokenizer_config.json" => Ok(format!(r#"{{"model_max_length": {longest}}}"#)),
            _ => Err(format!("there is no {file}")),
        };
        let text =
            translate(&format!("run_clm.py --train_file a.txt --model_name_or_path ./my {flags}"), &read).expect("a job").text;
        JobSpec::parse(&text, "job.toml").expect("valid").train.block_size
    };
    assert_eq!((block(2048, "2048", ""), block(2048, "512", ""), block(256, "2048", "")), (2048, 512, 256));
    assert_eq!((block(2048, "1e30", ""), block(2048, "512", "--block_size 1000")), (1024, 512));
    assert_eq!(block(2048, "2048", "--block_size 1000"), 1000);
    let gpt2 = super::job("run_clm.py --train_file a.txt --model_name_or_path gpt2 --block_size 2048");
    assert_eq!(gpt2.train.block_size, 1024);
    let created = super::job(&format!("{SMALL} --config_overrides n_positions=102,n_embd=48,n_head=4,n_layer=2"));
    assert_eq!((created.train.block_size, created.model.context), (102, Some(102)));
}

#[test]
fn adam_of_deepspeed_is_adamw() {
    let adam = |decay: &str, more: &str| {
        format!(
            r#"{{"optimizer": {{"type": "Adam", "params": {{"lr": 1e-3, "weight_decay": {decay}, "betas": [0.8, 0.99]{more}}}}}}}"#
        )
    };
    let (found, _) = with_config("", &adam("0.1", ""));
    let written = with_config("", &adam("0.1", "").replace("Adam", "AdamW")).0;
    assert_eq!(found, written);
    assert_eq!(with_config("", &adam("0.1", r#", "adam_w_mode": true, "torch_adam": true"#)).0, found);
    let off = r#", "adam_w_mode": false"#;
    assert_eq!(with_config("", &adam("0.1", off).replace("Adam", "AdamW")).0, found, "its AdamW is not told otherwise");
    let apart = refused_config("", &adam("0.1", off));
    assert!(apart.contains("optimizer.params.adam_w_mode: weights decay apart from the gradient here"), "{apart}");
    assert_eq!(
        with_config("", &adam("0", r#", "adam_w_mode": false"#)).0,
        TrainSettings { weight_decay: 0.0, ..found },
        "both are one"
    );
}

#[test]
fn every_scale_of_deepspeed_gives_a_job() {
    // Of a configuration: the first scale, the least, the most.
    let usual = LossScaling::default();
    for (fp16, initial, minimum, maximum) in [
        (r#""initial_scale_power": 16"#, 65536.0, 1.0, usual.maximum),
        (r#""initial_scale_power": 32"#, 4_294_967_296.0, 1.0, 4_294_967_296.0),
        (r#""initial_scale_power": 0, "min_loss_scale": 8"#, 8.0, 8.0, usual.maximum),
        (r#""initial_scale_power": -3"#, 1.0, 1.0, usual.maximum),
        (r#""min_loss_scale": 1e6"#, 1e6, 1e6, usual.maximum),
        (r#""min_loss_scale": 2, "loss_scale": 128, "initial_scale_power": 32"#, 128.0, 128.0, 128.0),
        (r#""loss_scale": 0.0, "loss_scale_window": 1e3"#, 65536.0, 1.0, usual.maximum),
    ] {
        let found = with_config("", &format!(r#"{{"fp16": {{"enabled": true, {fp16}}}}}"#)).0.loss_scaling;
        assert_eq!(found, LossScaling { initial, minimum, maximum, ..usual }, "{fp16}");
    }
    for (fp16, problem) in [
        (r#""initial_scale_power": 2000"#, "fp16.initial_scale_power: 2 to the power of 2000 is no scale"),
        (r#""loss_scale": -1"#, "fp16.loss_scale: a scale is above 0"),
        (r#""min_loss_scale": 0"#, "fp16.min_loss_scale: a scale is above 0"),
        (r#""consecutive_hysteresis": true"#, "fp16.consecutive_hysteresis: overflows are counted until the scale rises"),
        (r#""fp16_master_weights_and_grads": true"#, "fp16.fp16_master_weights_and_grads: weights, gradients"),
        (r#""loss_scale_window": 1.5"#, "fp16.loss_scale_window: `1.5` is not a whole number"),
    ] {
        let found = refused_config("", &format!(r#"{{"fp16": {{"enabled": true, {fp16}}}}}"#));
        assert!(found.contains(problem), "{fp16} gave {found}");
    }
}

#[test]
fn deepspeed_makes_what_is_missing_of_a_batch() {
    let divided = |flags: &str, config: &str| {
        let found = with_config(flags, config).0;
        (found.micro_batch.sequences(), found.gradient_accumulation)
    };
    assert_eq!(divided("", r#"{"train_batch_size": 4}"#), (4, 1));
    assert_eq!(divided("", r#"{"train_batch_size": 64, "gradient_accumulation_steps": 4}"#), (16, 4));
    assert_eq!(divided("", r#"{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 64}"#), (64, 64));
    assert_eq!(divided("--per_device_train_batch_size 2", r#"{"train_batch_size": 32}"#), (2, 16));
    assert_eq!(divided("--gradient_accumulation_steps 2", r#"{"train_batch_size": "auto"}"#), (8, 2));
    tells(&with_config("", r#"{"train_batch_size": 4}"#).1, "train.micro_batch is 4, from 4 sequences a step");
    let agreed = with_config("", r#"{"train_batch_size": 8}"#).1;
    assert!(!agreed.iter().any(|note| note.contains("sequences a step")), "{agreed:?}");
    let uneven = refused_config("--per_device_train_batch_size 3", r#"{"train_batch_size": 32}"#);
    assert!(uneven.contains("train_batch_size: 32 is not the micro-batch of 3 times the accumulation of 1"), "{uneven}");
}

/// `FusedAdam` and `DeepSpeedCPUAdam` have no weight decay by default, torch's own AdamW has.
#[test]
fn deepspeed_takes_its_own_defaults_where_a_section_lacks_a_key() {
    let flags = "--learning_rate 3e-4 --adam_beta2 0.95 --adam_epsilon 1e-6 --weight_decay 0.1 --max_grad_norm 2";
    let optimizer = |params: &str| format!(r#"{{"gradient_clipping": "auto", "optimizer": {{"type": "AdamW"{params}}}}}"#);
    let (found, notes) = with_config(flags, &optimizer(""));
    assert_eq!((found.learning_rate, found.betas, found.epsilon, found.weight_decay), (1e-3, [0.9, 0.999], 1e-8, 0.0));
    assert_eq!((found.clip_norm,), (2.0,), "auto leaves it to the flags");
    for told in [
        "optimizer.params.lr: not set, so DeepSpeed takes 0.001 and not 0.0003",
        "weight_decay: not set, so DeepSpeed takes 0 and not 0.1",
    ] {
        tells(&notes, &format!("ds_config {}{told}", if told.starts_with("weight") { "optimizer.params." } else { "" }));
    }
    for (params, decay) in [
        (r#", "params": {"torch_adam": true}"#, 0.01),
        (r#", "params": {"torch_adam": true, "weight_decay": 0.2}"#, 0.2),
        (r#", "params": {"weight_decay": "auto"}"#, 0.1),
    ] {
        assert_eq!((with_config(flags, &optimizer(params)).0.weight_decay,), (decay,), "{params}");
    }
    let (found, _) =
        with_config(flags, &optimizer(r#", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}"#));
    assert_eq!((found.learning_rate, found.betas, found.epsilon), (3e-4, [0.9, 0.95], 1e-6));
    let linear = r#""warmup_num_steps": 9, "warmup_type": "linear", "total_num_steps": 50"#;
    let schedule = |kind: &str, params: &str| format!(r#""scheduler": {{"type": "{kind}", "params": {{{params}}}}}"#);
    let decays = schedule("WarmupDecayLR", linear);
    let (found, notes) = with_config(&format!("{flags} --max_steps 50"), &format!("{{{decays}}}"));
    assert_eq!((found.learning_rate, found.weight_decay, found.clip_norm), (1e-3, 0.1, 1.0));
    tells(&notes, "ds_config gradient_clipping: not set, so DeepSpeed takes 1 since version 0.19.3; before that");
    tells(&notes, "ds_config scheduler.params.warmup_max_lr: not set, so DeepSpeed takes 0.001");
    // `WarmupLR` takes the rate of the optimizer, which has its own default.
    let warms = schedule("WarmupLR", r#""warmup_num_steps": 9"#);
    for (optimizer, rate) in [
        ("", 3e-4),
        (r#""optimizer": {"type": "AdamW"},"#, 1e-3),
        (r#""optimizer": {"type": "AdamW", "params": {"lr": 2e-3}},"#, 2e-3),
    ] {
        let (found, notes) = with_config(flags, &format!("{{{optimizer} {warms}}}"));
        assert_eq!((found.learning_rate,), (rate,), "{optimizer}");
        tells(&notes, "ds_config scheduler.params.warmup_max_lr: not set, so DeepSpeed takes the optimizer's lr");
    }
}

#[test]
fn schedules_and_sections_of_deepspeed_are_translated_or_noted() {
    let decay = |more: &str| format!(r#"{{"scheduler": {{"type": "WarmupDecayLR", "params": {{"warmup_num_steps": 9{more}}}}}}}"#);
    let (found, notes) = with_config(
        "--max_steps 100",
        &decay(r#", "warmup_type": "linear", "total_num_steps": 100, "warmup_max_lr": 1e-3, "last_batch_iteration": -1"#),
    );
    assert_eq!((found.schedule, found.warmup_steps), (Schedule::Linear, 9.into()));
    let ends = r#", "warmup_type": "linear", "warmup_min_lr": 1e-5"#;
    let (above, _) = with_config("--max_steps 100", &decay(ends).replace('9', "1"));
    assert_eq!((above.warmup_learning_rate, above.min_learning_rate), (1e-5, 1e-5), "it falls to where it began");
    assert_eq!(above.warmup_steps, 2.into(), "DeepSpeed's least");
    tells(&notes, "ds_config scheduler: DeepSpeed's rates come one step later");
    assert!(refused_config("", &decay("")).contains("warmup_type: its warm-up rises with the logarithm"));
    let later = refused_config("", &decay(r#", "warmup_type": "linear", "last_batch_iteration": 5"#));
    assert!(later.contains("last_batch_iteration: a schedule begins with its run"), "{later}");
    let other = refused_config("--max_steps 50", &decay(r#", "warmup_type": "linear", "total_num_steps": 100"#));
    assert!(other.contains("total_num_steps: 100 is not the run's 50"), "{other}");

    let off = r#"{"curriculum_learning": {"enabled": false, "x": 1}, "flops_profiler": {"enabled": false},
        "amp": {"enabled": false, "opt_level": "O3"}, "elasticity": false, "pipeline": true}"#;
    assert_eq!(with_config("", off).0, train(""));
    let (found, notes) =
        with_config("", r#"{"aio": {"block_size": 1e6}, "comms_logger": {"enabled": true, "prof_ops": ["a"]}, "compile": null}"#);
    assert_eq!(found, train(""));
    tells(&notes, "ds_config aio: what lies in files is mapped");
    assert!(refused_config("", r#"{"autotuning": true}"#).contains("ds_config autotuning: it would choose other batches"));
    let sum = refused_config(
        "",
        r#"{"gradient_allreduce_op": "sum", "sequence_parallel_size": 2, "data_types": {"keep_in_fp32_modules": ["x"]}}"#,
    );
    assert!(
        sum.contains("ds_config gradient_allreduce_op: gradients are the mean")
            && sum.contains("sequence_parallel_size: a model is")
    );
    assert_eq!(sum.lines().count(), 3, "{sum}");
    assert_eq!(with_config("", r#"{"gradient_allreduce_op": "mean", "sequence_parallel_size": 1}"#).0, train(""));
    tells(&notes, "ds_config comms_logger: the trainer has its own log");
    for (config, problem) in [
        (r#"{"fp16": true}"#, "ds_config fp16: true stands where an object belongs, with keys such as enabled"),
        (r#"{"optimizer": "AdamW"}"#, "ds_config optimizer: AdamW stands where an object belongs, with keys such as type"),
        (r#"{"scheduler": {"params": 3}}"#, "ds_config scheduler.params: 3 stands where an object belongs"),
        (r#"{"fp": true}"#, "ds_config fp: ftctl does not know this key"),
    ] {
        let found = refused_config("", config);
        assert!(found.contains(problem), "{config} gave {found}");
    }
    assert!(refused_config("", "[1]").contains("--deepspeed: its configuration is an object, and this is none"));
    assert!(refused_config("", r#"{"torch_autocast": {"enabled": true}}"#).contains("without dtype torch takes float16"));
    for (dtype, precision) in
        [("bfloat16", Precision::Bf16), ("torch.bfloat16", Precision::Bf16), ("half", Precision::Fp16), ("float", Precision::Fp32)]
    {
        let config =
            format!(r#"{{"torch_autocast": {{"enabled": true, "dtype": "{dtype}", "lower_precision_safe_modules": ["x"]}}}}"#);
        assert_eq!(with_config("", &config).0.precision, precision, "{dtype}");
    }
    let inline = job(&format!("{SMALL} --deepspeed '{{\"bf16\": {{\"enabled\": true}}}}'")).train;
    assert_eq!(inline.precision, Precision::Bf16, "its text may stand in the place of the file");
}

#[test]
fn a_switch_that_is_on_may_be_turned_off() {
    for flag in ["--keep_linebreaks False", "--no_keep_linebreaks", "--no-keep-linebreaks"] {
        let found = problems(&format!("{SMALL} {flag}"));
        assert!(found.contains("a text file is one document here"), "{flag} gave {found}");
    }
    for text in ["rows.parquet", "rows.json"] {
        let command = format!("{} --keep_linebreaks False", SMALL.replace("a.txt", text));
        tells(&notes(&command), "--keep_linebreaks: it is for text files");
    }
    assert_eq!(train("--keep_linebreaks --no_use_fast_tokenizer --full_determinism false"), train(""));
    assert!(train("--full_determinism").deterministic);
    for (value, is_on) in [("yes", true), ("1", true), ("T", true), ("no", false), ("0", false), ("f", false)] {
        for flag in [format!("--full_determinism={value}"), format!("--full_determinism {value}")] {
            assert_eq!(train(&flag).deterministic, is_on, "{flag}");
        }
    }
    for flag in ["--full_determinism=maybe", "--full_determinism maybe"] {
        let found = problems(&format!("{SMALL} {flag}"));
        assert!(found.contains("--full_determinism: `maybe` is neither true nor false"), "{flag} gave {found}");
    }
}

#[test]
fn fairseq_without_a_rate_or_an_end_has_its_own() {
    let command = "fairseq-train data --task language_modeling --arch transformer_lm_gpt --share-decoder-input-output-embed";
    assert!((job(command).train.learning_rate - 0.25).abs() < 1e-12);
    tells(&notes(command), "--lr: without it fairseq trains at 0.25");
    tells(&notes(command), "here a run has one epoch");
    let whole = notes(&format!("{command} --lr 1e-3 --max-update 5"));
    assert!(!whole.iter().any(|note| note.contains("without it")), "{whole:?}");
}

#[test]
fn fairseq_counts_epochs_tokens_and_widths() {
    let base = "fairseq-train data --task language_modeling --share-decoder-input-output-embed";
    let found = |flags: &str| job(&format!("{base} {flags}"));
    let gpt = "--arch transformer_lm_gpt --max-update 100";
    let epochs = found(&format!("{gpt} --batch-size 4")).train;
    assert_eq!([epochs.eval_every, epochs.checkpoint_every], [Length::Epochs(1.0); 2]);
    let rarer = found(&format!("{gpt} --batch-size 4 --save-interval 2 --validate-interval 5 --no-epoch-checkpoints")).train;
    assert_eq!([rarer.eval_every, rarer.checkpoint_every], [Length::Epochs(5.0), Length::Epochs(2.0)]);
    let none = found(&format!("{gpt} --batch-size 4 --disable-validation --no-save"));
    assert_eq!([none.train.eval_every, none.train.checkpoint_every], [Length::NONE; 2]);
    assert!(none.data.expect("tokens").validation.is_empty());

    let at_once = |flags: &str| found(&format!("{gpt} {flags}")).train.micro_batch.sequences();
    assert_eq!(at_once("--max-tokens 2048 --tokens-per-sample 512"), 4);
    assert_eq!(at_once("--max-tokens 10240 --tokens-per-sample 512"), 16, "a multiple of eight");
    assert_eq!(at_once("--max-tokens 10240 --tokens-per-sample 512 --required-batch-size-multiple 1"), 20);
    assert_eq!(at_once("--max-tokens 10240 --tokens-per-sample 512 --batch-size 3"), 3);

    let wide = found("--arch transformer_lm_gpt2_bigger --decoder-layers 2 --batch-size 1 --tokens-per-sample 2048 --max-update 9");
    assert_eq!((wide.model.layers, wide.model.width, wide.model.context), (Some(2), Some(2048), Some(2048)));
    let falls =
        found(&format!("{gpt} --batch-size 1 --lr '[0.001]' --lr-scheduler polynomial_decay --total-num-update 100 --power 2"))
            .train;
    assert_eq!(falls.schedule, Schedule::Polynomial);
    let amp = found(&format!("{gpt} --batch-size 1 --amp --fp16-init-scale 4")).train;
    assert_eq!((amp.precision, amp.loss_scaling.hysteresis), (Precision::Fp16, 1));
    assert!((amp.loss_scaling.initial - 4.0).abs() < 1e-12);
    for (flags, problem) in [
        ("other --batch-size 1", "other: fairseq has one word without a flag, its data, and that is data"),
        ("--update-freq 4 2", "2: fairseq has one word without a flag"),
        ("--max-tokens 100", "--max-tokens: 100 are less than one block of 1024"),
        ("--batch-size 1 --decoder-ffn-embed-dim 64", "--decoder-ffn-embed-dim: 64 is not 4 times the width of 768"),
        ("--batch-size 1 --lr 0.1,0.2", "--lr: the peak of the learning rate is the same in all epochs"),
        ("--batch-size 1 --total-num-update 50", "--total-num-update: the rate falls until the last update"),
        ("--batch-size 1 --valid-subset valid,test", "--valid-subset: valid,test are evaluated one by one there"),
        ("--batch-size 1 --restore-file old.pt", "--restore-file: fairseq's checkpoints are not read here"),
    ] {
        let found = problems(&format!("{base} {gpt} {flags}"));
        assert!(found.contains(problem), "{flags} gave {found}");
    }
    let apart = notes(&format!("fairseq-train data --task language_modeling {gpt} --batch-size 1"));
    tells(&apart, "--share-decoder-input-output-embed: without it fairseq learns an output head");
}

#[test]
fn all_flags_may_stand_in_a_file() {
    let flags = r#"{"train_file": "a.txt", "eval_strategy": "epoch", "fp16": false, "bf16": true, "warmup_steps": 0.1, "run_name": null,
        "report_to": ["wandb", "x"], "lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0},
        "deepspeed": {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}}"#;
    let translated = |text: &str| translate("torchrun run_clm.py all.json", &|_| Ok(text.to_owned()));
    let text = translated(flags).expect("a job").text;
    let train = JobSpec::parse(&text, "job.toml").unwrap_or_else(|error| panic!("{error}\n{text}")).train;
    assert_eq!((train.precision, train.eval_every), (Precision::Bf16, Length::Epochs(1.0)));
    assert_eq!(train.warmup_steps, Length::Percent(10.0));
    assert!((train.power - 2.0).abs() < 1e-15 && (train.learning_rate - 1e-3).abs() < 1e-15);
    for (text, problem) in [
        ("{", "all.json: EOF"),
        ("[1]", "all.json: flags belong into an object"),
        (r#"{"train_file": ["a.txt", "v.txt"]}"#, r#"--train_file: ["a.txt","v.txt"] stands where one text belongs"#),
        (r#"{"train-file": ["a.txt"]}"#, r#"--train-file: ["a.txt"] stands"#),
        (r#"{"train_file": 5}"#, "--train_file: 5 stands where one text belongs"),
        (r#"{"train_file": "a.txt", "model_name_or_path": ["gpt2"]}"#, r#"--model_name_or_path: ["gpt2"] stands"#),
        (r#"{"train_file": "a.txt", "tokenizer_name": {"a": 1}}"#, r#"--tokenizer_name: {"a":1} stands"#),
        (r#"{"train_file": "a.txt", "bf16": [true]}"#, "--bf16: [true] stands"),
        (r#"{"train_file": "a.txt", "deepspeed": [1]}"#, "--deepspeed: [1] stands where one text or object belongs"),
        (r#"{"eval_step": 9}"#, "--eval_step=9: ftctl does not know this flag; did you mean --eval_steps?"),
    ] {
        let found = translated(text).expect_err(text).what;
        assert!(found.contains(problem), "{text} gave {found}");
    }
}
