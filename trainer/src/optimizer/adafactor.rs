//! Adafactor (Shazeer & Stern 2018) as `transformers.optimization.Adafactor` computes it with the learning rate of a schedule
//! (`scale_parameter=False, relative_step=False`, which is what `--optim adafactor` means there): no first moment, the second
//! moment of a matrix as one number per row and per column, updates clipped to a root mean square of 1.

use tch::{Device, Kind, Tensor};

use super::{Rule, Update, norm};

/// Keeps the second moments above zero (ε₁ of the paper).
const EPSILON: f64 = 1e-30;
/// `β̂₂ = 1 − t^DECAY` (section 7.2).
const DECAY: f64 = -0.8;
/// Largest root mean square of an update (d of section 6).
const CLIP: f64 = 1.0;

/// Adafactor's state of one parameter.
#[derive(Debug)]
pub enum Adafactor {
    /// State of a matrix `[rows, columns]`: the mean squares of each row `[rows]` and of each column `[columns]`.
    Matrix { rows: Tensor, columns: Tensor },
    /// State of anything else: the mean square of each element.
    Vector { squares: Tensor },
}

impl Adafactor {
    pub fn new(parameter: &Tensor) -> Self {
        let zeros = |length: i64| Tensor::zeros([length], (parameter.kind(), parameter.device()));
        match parameter.size()[..] {
            [rows, columns] => Self::Matrix { rows: zeros(rows), columns: zeros(columns) },
            _ => Self::Vector { squares: parameter.zeros_like() },
        }
    }

    /// Takes the squares of a gradient into the averages; the inverse root of what they now say, of the gradient's dimensions or
    /// broadcast to them.
    fn inverse_root(&mut self, squares: &Tensor, beta: f64) -> Tensor {
        let average = |mean: &mut Tensor, new: Tensor| mean.g_mul_scalar_(beta).g_add_(&(new * (1.0 - beta)));
        match self {
            Self::Matrix { rows, columns } => {
                let _ = average(rows, squares.mean_dim(-1_i64, false, None));
                let _ = average(columns, squares.mean_dim(-2_i64, false, None));
                let of_rows = (&*rows / mean(rows)).rsqrt().unsqueeze(-1);
                of_rows * columns.rsqrt().unsqueeze(0)
            }
            Self::Vector { squares: mean } => average(mean, squares.shallow_clone()).rsqrt(),
        }
    }
}

// libtorch shares a sum of more than 32,768 numbers out among its threads, so that its bits depend on their number. On a GPU it has
// an order of its own, and to wait for a number from there would hold up the rest.

/// The mean of a vector.
fn mean(numbers: &Tensor) -> Tensor {
    if numbers.device() != Device::Cpu {
        return numbers.mean(None::<Kind>);
    }
    let all: Vec<f64> = Vec::try_from(numbers.to_kind(Kind::Double)).expect("numbers of f64");
    Tensor::from(all.iter().sum::<f64>() / all.len() as f64).to_kind(numbers.kind())
}

/// The Euclidean norm of all numbers.
fn length(numbers: &Tensor) -> Tensor {
    if numbers.device() == Device::Cpu { Tensor::from(norm::of(numbers)).to_kind(numbers.kind()) } else { numbers.norm() }
}

impl Rule for Adafactor {
    fn name(&self) -> &'static str {
        "Adafactor"
    }

    fn update(&mut self, parameter: &mut Tensor, gradient: &Tensor, update: &Update) {
        let gradient = gradient * update.gradient_scale;
        let beta = 1.0 - (update.number as f64).powf(DECAY);
        let change = self.inverse_root(&(gradient.square() + EPSILON), beta) * gradient;
        let root_mean_square = length(&change) / (change.numel() as f64).sqrt();
        let change = change / (root_mean_square / CLIP).clamp_min(1.0) * update.learning_rate;
        let _ = parameter.g_mul_scalar_(1.0 - update.learning_rate * update.weight_decay).g_sub_(&change);
    }

    fn state(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Self::Matrix { rows, columns } => vec![("exp_avg_sq_row", rows), ("exp_avg_sq_col", columns)],
            Self::Vector { squares } => vec![("exp_avg_sq", squares)],
        }
    }
}
