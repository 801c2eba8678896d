//! Weights on disk: written ones are read back bit for bit, and damaged ones are refused by name.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use ft_trainer::model::hugging_face::CONFIG_FILE;
use ft_trainer::model::weights::parameters::WEIGHTS_FILE;
use ft_trainer::model::weights::tensor_file;
use ft_trainer::model::{Parameters, Shape};
use ft_trainer::settings::{ModelConfig, Variant};
use tch::{Kind, Tensor};

fn shape() -> Shape {
    Shape { layers: 2, heads: 2, width: 8, context: 16, vocabulary: 29, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 }
}

fn write_config(directory: &Path) {
    fs::write(directory.join(CONFIG_FILE), shape().config_json(None).to_string()).unwrap();
}

/// A directory with `config.json` and the given tensors as `model.safetensors`.
fn directory(tensors: &[(String, Tensor)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path());
    write(&directory.path().join(WEIGHTS_FILE), tensors);
    directory
}

fn write(path: &Path, tensors: &[(String, Tensor)]) {
    tensor_file::write(path, tensors.iter().map(|(name, tensor)| (name.clone(), tensor))).unwrap();
}

fn tensors() -> Vec<(String, Tensor)> {
    Parameters::random(&shape(), 1).iter().map(|entry| (entry.name.clone(), entry.tensor.copy())).collect()
}

fn changed(name: &str, change: impl Fn(&Tensor) -> Tensor) -> Vec<(String, Tensor)> {
    let change = |(found, tensor): (String, Tensor)| if found == name { (found, change(&tensor)) } else { (found, tensor) };
    tensors().into_iter().map(change).collect()
}

fn refusal(directory: &Path) -> String {
    Parameters::load(directory).unwrap_err().to_string()
}

fn assert_equal(left: &Parameters, right: &Parameters) {
    for (left, right) in left.iter().zip(right) {
        assert!(left.name == right.name && left.tensor.equal(&right.tensor), "{} differs", left.name);
    }
}

#[test]
fn writing_and_reading_keeps_every_bit() {
    let parameters = Parameters::random(&shape(), 1);
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path());
    let file = directory.path().join(WEIGHTS_FILE);
    parameters.write_safetensors(&file).unwrap();
    let bytes = fs::read(&file).unwrap();
    let (found, loaded) = Parameters::load(directory.path()).unwrap();
    assert_eq!(found, shape());
    assert_equal(&loaded, &parameters);
    loaded.write_safetensors(&file).unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes);
}

/// Queries, keys and values apart, and linear maps the other way round.
#[test]
fn fairseqs_variant_is_stored_under_its_own_names() {
    let shape = Shape { variant: Variant::Fairseq, ..shape() };
    let parameters = Parameters::random(&shape, 1);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(CONFIG_FILE), shape.config_json(None).to_string()).unwrap();
    let file = directory.path().join(WEIGHTS_FILE);
    parameters.write_safetensors(&file).unwrap();
    let (found, loaded) = Parameters::load(directory.path()).unwrap();
    assert_eq!(found, shape);
    assert_equal(&loaded, &parameters);
    let stored = tensor_file::read(&file).unwrap();
    let keys = stored.iter().find(|(name, _)| name == "model.layers.1.self_attn.k_proj.weight").unwrap();
    let whole = parameters.iter().find(|entry| entry.name == "transformer.h.1.attn.c_attn.weight").unwrap();
    assert!(keys.1.equal(&whole.tensor.narrow(1, 8, 8).tr()));
    assert_eq!(stored.len(), 2 * 16 + 3);
    let without: Vec<(String, Tensor)> = stored.into_iter().filter(|(name, _)| !name.contains("1.fc1.bias")).collect();
    write(&file, &without);
    assert!(refusal(directory.path()).contains("model.layers.1.fc1.bias is missing"), "{}", refusal(directory.path()));
}

#[test]
fn initial_weights_depend_on_the_seed_and_not_on_the_threads() {
    let large = Shape { vocabulary: 40_000, ..shape() };
    tch::set_num_threads(1);
    let alone = Parameters::random(&large, 5);
    tch::set_num_threads(3);
    assert_equal(&Parameters::random(&large, 5), &alone);
    assert!(!Parameters::random(&large, 6).iter().zip(&alone).all(|(left, right)| left.tensor.equal(&right.tensor)));
}

#[test]
fn initial_weights_follow_the_paper() {
    let shape =
        Shape { layers: 8, heads: 2, width: 128, context: 64, vocabulary: 500, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    for entry in &Parameters::random(&shape, 5) {
        let (mean, deviation) = (entry.tensor.mean(Kind::Double).double_value(&[]), entry.tensor.std(false).double_value(&[]));
        let expected = match (entry.decays(), entry.name.ends_with("c_proj.weight"), entry.name.ends_with(".weight")) {
            (true, true, _) => (0.0, 0.02 / 4.0),
            (true, false, _) => (0.0, 0.02),
            (false, _, true) => (1.0, 0.0),
            (false, _, false) => (0.0, 0.0),
        };
        assert!(
            (mean - expected.0).abs() < 1e-3 && (deviation - expected.1).abs() <= 0.03 * expected.1,
            "{}: {mean} ± {deviation}",
            entry.name
        );
    }
}

#[test]
fn names_without_prefix_masks_and_a_tied_head_are_accepted() {
    let mut bare: Vec<_> = tensors().into_iter().map(|(name, tensor)| (name.replace("transformer.", ""), tensor)).collect();
    bare.push(("h.1.attn.bias".to_owned(), Tensor::ones([1, 1, 4, 4], (Kind::Float, tch::Device::Cpu))));
    bare.push(("h.1.attn.masked_bias".to_owned(), Tensor::from(-1e4)));
    bare.push(("lm_head.weight".to_owned(), bare[0].1.copy()));
    let directory = directory(&bare);
    assert_equal(&Parameters::load(directory.path()).unwrap().1, &Parameters::random(&shape(), 1));
}

#[test]
fn an_untied_head_is_refused() {
    let mut untied = tensors();
    untied.push(("lm_head.weight".to_owned(), untied[0].1.copy() * 2.0));
    assert!(refusal(directory(&untied).path()).contains("untied"));
}

#[test]
fn half_precision_is_widened() {
    for kind in [Kind::Half, Kind::BFloat16] {
        let rounded: Vec<_> = tensors().into_iter().map(|(name, tensor)| (name, tensor.to_kind(kind))).collect();
        let directory = directory(&[]);
        Tensor::write_safetensors(&rounded, directory.path().join(WEIGHTS_FILE)).unwrap();
        let (_, loaded) = Parameters::load(directory.path()).unwrap();
        for (entry, (name, tensor)) in loaded.iter().zip(&rounded) {
            assert!(entry.tensor.equal(&tensor.to_kind(Kind::Float)), "{name} as {kind:?}");
        }
    }
}

#[test]
fn shards_are_read_through_their_index() {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path());
    let all = tensors();
    let mut map = serde_json::Map::new();
    for (number, part) in all.chunks(9).enumerate() {
        let file = format!("model-{number}.safetensors");
        write(&directory.path().join(&file), part);
        map.extend(part.iter().map(|(name, _)| (name.clone(), file.clone().into())));
    }
    let index = directory.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).unwrap();
    assert_equal(&Parameters::load(directory.path()).unwrap().1, &Parameters::random(&shape(), 1));

    fs::remove_file(directory.path().join("model-1.safetensors")).unwrap();
    assert!(refusal(directory.path()).contains("model-1.safetensors"));
    fs::write(&index, r#"{"weight_map": {"a": "../outside.safetensors"}}"#).unwrap();
    assert!(refusal(directory.path()).contains("not a file beside the index"));
}

#[test]
fn damage_is_named() {
    let gain = "transformer.h.1.ln_2.weight";
    let poisoned = changed(gain, |tensor| tensor * f64::NAN);
    let message = refusal(directory(&poisoned).path());
    assert!(message.contains(gain) && message.contains("NaN"), "{message}");

    let overflowed = changed(gain, |tensor| tensor * f64::INFINITY);
    assert!(refusal(directory(&overflowed).path()).contains(gain));

    let resized = changed(gain, |_| Tensor::zeros([5], (Kind::Float, tch::Device::Cpu)));
    let message = refusal(directory(&resized).path());
    assert!(message.contains(gain) && message.contains("[5]") && message.contains("[8]"), "{message}");

    let missing: Vec<_> = tensors().into_iter().filter(|(name, _)| name != gain).collect();
    let message = refusal(directory(&missing).path());
    assert!(message.contains(gain) && message.contains("missing"), "{message}");

    let mut extra = tensors();
    extra.push(("transformer.h.2.ln_1.weight".to_owned(), Tensor::from(1.0)));
    assert!(refusal(directory(&extra).path()).contains("transformer.h.2.ln_1.weight"));
}

#[test]
fn a_truncated_file_is_refused_at_every_length() {
    let directory = directory(&tensors());
    let file = directory.path().join(WEIGHTS_FILE);
    let bytes = fs::read(&file).unwrap();
    for length in [0, 1, 7, 8, 9, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&file, &bytes[..length]).unwrap();
        let message = refusal(directory.path());
        assert!(message.contains("truncated") || message.contains("cannot open"), "{length} bytes: {message}");
    }
}

#[test]
fn a_pickle_that_would_run_code_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path());
    assert!(refusal(directory.path()).contains("model.safetensors"));
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    fs::write(directory.path().join("pytorch_model.bin"), [&magic[..], b"\x80\x02cos\nsystem\n."].concat()).unwrap();
    let message = refusal(directory.path());
    assert!(message.contains("it names os.system, and loading it would run that; only tensors are read"), "{message}");
}

/// A matrix that was turned round is stored so by `torch.save`.
#[test]
fn tensors_of_torch_save_have_their_values() {
    for name in ["zip", "old"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/torch").join(name);
        let file = tensor_file::TensorFile::open(&path).unwrap();
        let plain = Tensor::from_slice(&[0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]).view([2, 3]);
        assert!(file.tensor("lm_head.weight").unwrap().equal(&plain), "{name}");
        assert!(file.tensor("turned").unwrap().equal(&plain.tr()), "{name}");
        assert!(file.tensor("h").unwrap().equal(&Tensor::ones([2], (Kind::BFloat16, tch::Device::Cpu))), "{name}");
    }
}

/// The embedding may be called as the head, all of it may lie in wrappers, and rows beyond the tokens stay what they are.
#[test]
fn one_model_in_other_spellings_has_the_same_values() {
    let mut wrapped: Vec<_> = tensors().into_iter().map(|(name, tensor)| (format!("_orig_mod.module.{name}"), tensor)).collect();
    wrapped[0].0 = "module.lm_head.weight".to_owned();
    let directory = directory(&wrapped);
    let (shape, loaded) = Parameters::load(directory.path()).unwrap();
    assert_equal(&loaded, &Parameters::random(&shape, 1));
    assert_eq!(shape.agrees_with(&ModelConfig::default(), 25, 16), Ok(()), "four rows more than tokens");
    loaded.write_safetensors(&directory.path().join(WEIGHTS_FILE)).unwrap();
    assert_equal(&Parameters::load(directory.path()).unwrap().1, &loaded);
}
