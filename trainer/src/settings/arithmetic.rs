//! A run's report at its start on the types of numbers that it computes in.

use super::{OptimizerKind, Precision, TrainSettings};

impl TrainSettings {
    /// The numeric type of each part of the computation, and whether the bits are the same each time, with the reasons, for the
    /// start of a run.
    pub fn arithmetic(&self, on_gpu: bool) -> Vec<String> {
        let precision = match self.precision {
            Precision::Fp32 if self.tf32 && on_gpu => {
                "matrix products of fp32 numbers rounded to TF32, the rest in fp32, because of train.tf32"
            }
            Precision::Fp32 if self.tf32 => "everything in fp32, because of train.precision; train.tf32 is for GPUs",
            Precision::Fp32 => "everything in fp32, because of train.precision",
            Precision::Bf16 => {
                "matrix products in bf16; weights, gradients, optimizer, layer norms and sums in fp32, because of train.precision"
            }
            Precision::Fp16 => {
                "matrix products in fp16 with a scaled loss; weights, gradients, optimizer, layer norms and sums in fp32, because of \
                 train.precision"
            }
        };
        let muon = (self.optimizer == OptimizerKind::Muon)
            .then_some("precision: Muon makes a matrix orthogonal in numbers rounded to bf16, because of train.optimizer");
        let repeats = match (on_gpu, self.deterministic) {
            (false, _) => "the same bits each time, because the kernels of the CPU add up in one order",
            (true, true) => "the same bits each time, because of train.deterministic",
            (true, false) => {
                "not the same bits each time, because train.deterministic is false and some kernels of the GPU add up in any order"
            }
        };
        [format!("precision: {precision}")]
            .into_iter()
            .chain(muon.map(str::to_owned))
            .chain([format!("deterministic: {repeats}")])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_arithmetic_is_told_with_its_reason() {
        let told = |change: fn(&mut TrainSettings), on_gpu| {
            let mut settings = TrainSettings::default();
            change(&mut settings);
            settings.arithmetic(on_gpu).join("\n")
        };
        assert!(
            told(|_| (), true)
                .starts_with("precision: everything in fp32, because of train.precision\ndeterministic: not the same bits")
        );
        assert!(told(|_| (), false).contains("\ndeterministic: the same bits each time, because the kernels of the CPU"));
        assert!(
            told(|settings| settings.deterministic = true, true)
                .contains("the same bits each time, because of train.deterministic")
        );
        let tf32: fn(&mut TrainSettings) = |settings| settings.tf32 = true;
        assert!(told(tf32, true).contains("rounded to TF32, the rest in fp32, because of train.tf32"));
        assert!(told(tf32, false).contains("everything in fp32, because of train.precision; train.tf32 is for GPUs"));
        assert!(
            told(|settings| settings.optimizer = OptimizerKind::Muon, false)
                .contains("rounded to bf16, because of train.optimizer")
        );
        assert!(told(|settings| settings.precision = Precision::Bf16, true).contains("products in bf16;"));
    }
}
