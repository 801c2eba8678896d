//! A model that starts a job.

use std::{collections::BTreeMap, fs::File, io::Write as _, path::Path};

use ft_trainer::{model::Shape, settings::Variant};
use serde_json::{Value, json};

/// A GPT-2 of zeros with some more rows than it has tokens, and files that no run reads.
pub fn write_model(directory: &Path) {
    std::fs::create_dir_all(directory.join(".git")).expect("a directory");
    let shape =
        Shape { layers: 1, heads: 2, width: 8, context: 64, vocabulary: 50_304, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 };
    std::fs::write(directory.join("config.json"), shape.config_json(None).to_string()).expect("written");
    std::fs::write(directory.join("tf_model.h5"), vec![0; 1 << 20]).expect("written");
    let mut end = 0_u64;
    let entry = |spec: ft_trainer::model::role::TensorSpec| {
        let first = end;
        end += 4 * spec.numbers();
        (format!("module.{}", spec.name), json!({"dtype": "F32", "shape": spec.dimensions, "data_offsets": [first, end]}))
    };
    let header: BTreeMap<String, Value> = shape.tensors().into_iter().map(entry).collect();
    let header = json!(header).to_string();
    let mut file = File::create(directory.join("model.safetensors")).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(header.as_bytes())).expect("written");
    file.set_len(8 + header.len() as u64 + end).expect("zeros");
}
