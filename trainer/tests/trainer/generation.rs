//! Text from a model: the same whatever the batch, and the same with and without the cache.

use std::path::Path;

use ft_trainer::generation::sampling::Sampling;
use ft_trainer::generation::{Continuation, Finish, Request, generate};
use ft_trainer::model::{Gpt2, Parameters, Setup, Shape};
use ft_trainer::progress::{Event, Line};
use ft_trainer::settings::{Precision, Variant};
use serde_json::Value;
use tch::{Device, Tensor};

use crate::fixture::{Fixture, last_checkpoint, program, succeed};

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };

fn model() -> Gpt2 {
    let (shape, parameters) = weights();
    Gpt2::new(shape, &parameters, Device::Cpu)
}

/// Random weights, larger than initial ones so that the likeliest token is clearly so.
fn weights() -> (Shape, Parameters) {
    tch::set_num_threads(1);
    let shape =
        Shape { layers: 2, heads: 2, width: 32, context: 64, vocabulary: 101, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    let mut parameters = Parameters::random(&shape, 5);
    for parameter in parameters.iter_mut().filter(|parameter| parameter.decays()) {
        parameter.tensor = &parameter.tensor * 8.0;
    }
    (shape, parameters)
}

fn prompts() -> Vec<Vec<u32>> {
    [1_usize, 3, 17, 8, 2, 17, 11, 5]
        .iter()
        .enumerate()
        .map(|(row, &length)| (0..length).map(|n| ((row * 29 + n * 13) % 100) as u32).collect())
        .collect()
}

fn continued(model: &Gpt2, prompts: &[Vec<u32>], sampling: Sampling) -> Vec<Continuation> {
    continued_by(40, model, prompts, sampling)
}

fn continued_by(tokens: usize, model: &Gpt2, prompts: &[Vec<u32>], sampling: Sampling) -> Vec<Continuation> {
    generate(model, prompts, &Request { tokens, sampling, seed: 9, vocabulary: usize::MAX, end_of_text: 100, draft: tokens > 20 })
        .unwrap()
}

/// Guessed ahead by a draft, and with fewer tokens by the text before.
const LONG_AND_SHORT: [usize; 2] = [40, 20];

#[test]
fn a_batch_continues_as_each_prompt_alone() {
    let (model, prompts) = (model(), prompts());
    for tokens in LONG_AND_SHORT {
        for (prompt, together) in prompts.iter().zip(continued_by(tokens, &model, &prompts, GREEDY)) {
            assert_eq!(continued_by(tokens, &model, std::slice::from_ref(prompt), GREEDY), [together]);
        }
    }
}

/// Drawn tokens seldom equal the guesses.
#[test]
fn guessing_changes_no_drawn_token() {
    let (model, prompts) = (model(), prompts());
    let sampling = Sampling { temperature: 0.7, top_k: 5, top_p: 1.0 };
    for (tokens, prompt) in LONG_AND_SHORT.into_iter().flat_map(|tokens| prompts.iter().map(move |prompt| (tokens, prompt))) {
        let together = continued_by(tokens, &model, &[prompt.clone(), prompts[0].clone()], sampling);
        assert_eq!(continued_by(tokens, &model, std::slice::from_ref(prompt), sampling)[0], together[0]);
    }
}

/// A draft that guesses badly changes no text, only the time. Four widths are more terms than one sum of whole numbers has.
#[test]
fn a_draft_computes_nearly_the_models_logits() {
    for variant in [Variant::Gpt2, Variant::Fairseq] {
        let shape = Shape { layers: 2, heads: 2, width: 160, context: 64, vocabulary: 101, layer_norm_epsilon: 1e-5, variant };
        let mut parameters = Parameters::random(&shape, 5);
        for parameter in parameters.iter_mut().filter(|parameter| parameter.decays()) {
            parameter.tensor = &parameter.tensor * 8.0;
        }
        let model = Gpt2::new(shape, &parameters, Device::Cpu);
        let draft = model.draft().expect("a draft of a model in f32");
        let (read, next): (&[i64], [i64; 3]) = (&[7, 93, 20, 51], [20, 64, 3]);
        let mut cache = model.cache(1, 16).unwrap();
        let after =
            |tokens: &[i64], cache: &mut _| model.next_logits(&Tensor::from_slice(tokens).view([1, -1]), cache, &[0]).unwrap();
        let _ = after(read, &mut cache);
        for (ahead, token) in next.into_iter().enumerate() {
            let guessed = Tensor::from_slice(&draft.logits(token as u32, &mut cache, ahead));
            let logits = after(&[read, &next[..=ahead]].concat(), &mut model.cache(1, 16).unwrap()).squeeze();
            let (error, size) = ((guessed - &logits).abs().max().double_value(&[]), logits.std(false).double_value(&[]));
            assert!(error < 0.1 * size, "{variant:?}, {ahead} ahead: {error} of {size}");
        }
    }
    let (shape, parameters) = weights();
    let bf16 = Setup { precision: Precision::Bf16, ..Setup::default() };
    let rounded = Gpt2::for_training(shape, &parameters, Device::Cpu, &bf16).unwrap();
    assert!(rounded.draft().is_none(), "products of other kinds are not served");
}

#[test]
fn the_cache_changes_nothing() {
    let model = model();
    for prompt in prompts() {
        let mut tokens: Vec<i64> = prompt.iter().copied().map(i64::from).collect();
        for _ in 0..40 {
            let logits = model.logits(&Tensor::from_slice(&tokens).view([1, -1]));
            let next = logits.select(1, -1).argmax(-1, false).int64_value(&[0]);
            if next == 100 {
                break;
            }
            tokens.push(next);
        }
        let expected: Vec<u32> = tokens[prompt.len()..].iter().map(|&token| token as u32).collect();
        assert_eq!(continued(&model, &[prompt], GREEDY)[0].tokens, expected);
    }
}

#[test]
fn a_seed_gives_one_text() {
    let (model, prompts) = (model(), prompts());
    let sampling = Sampling { temperature: 1.0, top_k: 20, top_p: 0.9 };
    let text = continued(&model, &prompts, sampling);
    assert_eq!(continued(&model, &prompts, sampling), text);
    let other = generate(
        &model,
        &prompts,
        &Request { tokens: 40, sampling, seed: 10, vocabulary: usize::MAX, end_of_text: 100, draft: true },
    )
    .unwrap();
    assert_ne!(other, text);
}

#[test]
fn a_text_ends_where_the_context_does() {
    let model = model();
    let request = Request { tokens: 200, sampling: GREEDY, seed: 0, vocabulary: usize::MAX, end_of_text: 1000, draft: true };
    let continuation = generate(&model, &[vec![1, 2, 3]], &request).unwrap().swap_remove(0);
    assert_eq!((continuation.tokens.len(), continuation.finish), (61, Finish::Context));
}

#[test]
fn a_run_tells_its_whole_story() {
    let fixture = Fixture::new();
    let output = fixture.trained("trained", &["train.log_every=20", "train.checkpoint_every=20"]);
    let text = std::fs::read_to_string(output.join("progress.jsonl")).unwrap();
    let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut told: Vec<String> = lines.iter().map(|line| summarised(&line.event)).collect();
    let place = |told: &[String], what: &str| told.iter().position(|told| told == what).unwrap();
    // It is told when it is on the disk, which training does not wait for.
    let first = place(&told, "checkpoint step-0000000020");
    assert!((place(&told, "step 20")..place(&told, "checkpoint step-0000000040")).contains(&first), "{told:?}");
    told.remove(first);
    let expected =
        "start 0, eval 0, step 1, eval 16, step 20, eval 32, step 40, eval 40, checkpoint step-0000000040, sample 40, done 40";
    assert_eq!(told.join(", "), expected);
}

#[test]
fn samples_at_evaluations_leave_training_as_it_is() {
    let fixture = Fixture::new();
    let dropout = ["train.dropout=0.1", "sample.temperature=1.0"];
    let [without, with] = [("without", "false"), ("with", "true")].map(|(name, every)| {
        fixture.trained(name, &[&dropout[..], &[format!("sample.every_evaluation={every}").as_str()]].concat())
    });
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [without, with] = [&without, &with].map(|output| std::fs::read(last_checkpoint(output).join(file)).unwrap());
        assert!(without == with, "{file} differs");
    }
    let read = |output: &Path, file: &str| std::fs::read_to_string(output.join(file)).unwrap();
    assert_eq!(read(&without, "sample.txt"), read(&with, "sample.txt"));
    let steps = read(&with, "steps.jsonl");
    let (samples, rest): (Vec<&str>, Vec<&str>) = steps.lines().partition(|line| line.contains("\"sample\""));
    assert_eq!(rest, read(&without, "steps.jsonl").lines().collect::<Vec<_>>());
    let progress = read(&with, "progress.jsonl");
    let told = progress.lines().filter_map(|line| match serde_json::from_str::<Line>(line).unwrap().event {
        Event::Sample { step, text } => Some((step, text)),
        _ => None,
    });
    let told: Vec<(u64, String)> = told.collect();
    assert_eq!(told.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 16, 32, 40]);
    assert!(told.iter().all(|(_, text)| text.starts_with("fn ")) && told[0].1 != told[2].1, "{told:?}");
    let logged: Vec<Value> = samples.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = told[..3].iter().map(|(step, text)| serde_json::json!({ "step": step, "sample": text }));
    assert_eq!(logged, expected.collect::<Vec<_>>(), "the end's is beside the log");
}

fn summarised(event: &Event) -> String {
    match event {
        Event::Start { step, .. } => format!("start {step}"),
        Event::Step { step, .. } => format!("step {step}"),
        Event::Skipped { step, .. } => format!("skipped {step}"),
        Event::Eval { step, .. } => format!("eval {step}"),
        Event::Checkpoint { name, .. } => format!("checkpoint {name}"),
        Event::Sample { step, .. } => format!("sample {step}"),
        Event::Done { step, .. } => format!("done {step}"),
        Event::Unknown => "unknown".to_owned(),
    }
}

#[test]
fn the_commands_print_what_they_found() {
    let fixture = Fixture::new();
    let output = fixture.trained("trained", &[]);
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(output.join("summary.json")).unwrap()).unwrap();
    let after = summary["perplexity_after"].as_f64().unwrap();
    assert!(after < summary["perplexity_before"].as_f64().unwrap() / 2.0, "{summary}");
    assert!(std::fs::read_to_string(output.join("sample.txt")).unwrap().starts_with("fn "));

    let run = |arguments: &[&str]| {
        let stdout = succeed(program().args(arguments).current_dir(fixture.directory.path()));
        serde_json::from_str::<Value>(&stdout).unwrap()
    };
    let checkpoint = last_checkpoint(&output);
    let checkpoint = checkpoint.to_str().unwrap();
    let evaluation = run(&["eval", "--model", checkpoint, "--data", "data", "--block-size", "32", "--batch", "3"]);
    assert!((evaluation["perplexity"].as_f64().unwrap() / after - 1.0).abs() < 1e-5, "{evaluation} against {summary}");
    let text = run(&[
        "generate",
        "--model",
        checkpoint,
        "--prompt",
        "fn load",
        "--prompt",
        "fn",
        "--tokens",
        "5",
        "--temperature",
        "0",
        "--json",
    ]);
    assert_eq!(text["samples"].as_array().unwrap().len(), 2);
    assert!(text["samples"][0]["text"].as_str().unwrap().starts_with("fn load"));
    let inspected = run(&["inspect", checkpoint, "--json"]);
    assert_eq!(inspected["parameters"], summary["parameters"]);
    assert_eq!(run(&["inspect", "--preset", "gpt2", "--json"])["parameters"], 124_439_808);
}

/// Chrome's trace viewer reads it: an array of complete events that lie inside each other.
#[test]
fn a_profile_shows_what_each_step_spent_its_time_on() {
    let fixture = Fixture::new();
    let values = ["train.profile=true", "train.steps=3", "train.warmup_steps=1", "train.document_mask=true"];
    let output = fixture.trained("profiled", &values);
    let events: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(output.join("trace.json")).unwrap()).unwrap();
    let of = |name: &str| -> Vec<(f64, f64)> {
        let times = |event: &Value| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        events.iter().filter(|event| event["name"] == name && event["ph"] == "X").map(times).collect()
    };
    let counts = ["step", "data", "forward", "backward", "optimizer", "validation", "checkpoint"].map(|name| of(name).len());
    assert_eq!(counts, [3, 6, 6, 6, 3, 2, 1], "two micro-batches a step");
    assert!(of("checkpoint wait").len() >= 2, "for its beginning and its end");
    for (start, length) in of("step") {
        let inside = ["data", "forward", "backward", "optimizer"].into_iter().flat_map(of);
        let spent: f64 = inside.filter(|(at, _)| (start..start + length).contains(at)).map(|(_, length)| length).sum();
        assert!(spent > 0.0 && spent <= length + 1.0, "{spent} µs of {length}");
    }
}
