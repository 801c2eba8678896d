//! Encodes files with GPT-2's vocabulary on one core: what `benches/bpe.py` puts beside tiktoken.
//!
//! Usage: encode LIST OUT; LIST names one file a line, OUT gets the ids of all of them as 32-bit numbers, little-endian. Prints the
//! seconds that encoding took.

use std::io::Write;
use std::time::Instant;

use ft_trainer::data::tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, out] = &arguments[..] else { return Ok(()) }; // `cargo bench` and `cargo test` pass something else
    let names = std::fs::read_to_string(list)?;
    let texts = names.lines().map(std::fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let tokenizer = Tokenizer::gpt2()?;
    let one_core = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let started = Instant::now();
    let ids = one_core.install(|| tokenizer.encode_batch(&texts));
    println!("{}", started.elapsed().as_secs_f64());
    let mut file = std::io::BufWriter::new(std::fs::File::create(out)?);
    ids.iter().flatten().try_for_each(|id| file.write_all(&id.to_le_bytes()))?;
    Ok(file.flush()?)
}
