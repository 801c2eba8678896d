//! Pickles of tensors, read without running anything in them: of all that a pickle may call, what builds a dictionary of tensors is
//! known here, and does nothing else.

use rustc_hash::FxHashMap;
use safetensors::tensor::Dtype;

/// Values of the largest pickle, and on its stack: a model has some ten for each tensor.
const MOST_VALUES: usize = 1 << 20;
/// Bytes that the values of the largest pickle take beside their number: one of its values can be copied by each two bytes that it
/// has.
const MOST_COPIED: usize = 64 << 20;
/// Names under which training programs keep the weights beside other things.
const INSIDE: [&str; 5] = ["state_dict", "model_state_dict", "model", "module", "weights"];

/// A tensor: a view of a storage.
#[derive(Debug, Clone)]
pub struct View {
    pub storage: Storage,
    /// Elements of the storage before the first.
    pub offset: usize,
    pub size: Vec<usize>,
    pub strides: Vec<usize>,
}

/// Where numbers lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    pub key: String,
    pub dtype: Dtype,
}

/// The place of a value among all.
type Id = usize;

#[derive(Debug, Clone)]
enum Value<'a> {
    /// Something that no tensor needs.
    Other,
    Whole(i64),
    Text(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dictionary(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(View),
}

/// The globals that a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Global {
    Dictionary,
    Tensor,
    Parameter,
    StorageOf(Dtype),
}

const GLOBALS: [(&str, &str, Global); 14] = [
    ("collections", "OrderedDict", Global::Dictionary),
    ("torch._utils", "_rebuild_tensor_v2", Global::Tensor),
    ("torch._utils", "_rebuild_tensor", Global::Tensor),
    ("torch._utils", "_rebuild_parameter", Global::Parameter),
    ("torch", "FloatStorage", Global::StorageOf(Dtype::F32)),
    ("torch", "HalfStorage", Global::StorageOf(Dtype::F16)),
    ("torch", "BFloat16Storage", Global::StorageOf(Dtype::BF16)),
    ("torch", "DoubleStorage", Global::StorageOf(Dtype::F64)),
    ("torch", "LongStorage", Global::StorageOf(Dtype::I64)),
    ("torch", "IntStorage", Global::StorageOf(Dtype::I32)),
    ("torch", "ShortStorage", Global::StorageOf(Dtype::I16)),
    ("torch", "CharStorage", Global::StorageOf(Dtype::I8)),
    ("torch", "ByteStorage", Global::StorageOf(Dtype::U8)),
    ("torch", "BoolStorage", Global::StorageOf(Dtype::BOOL)),
];

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Id,
    /// The bytes after it.
    pub rest: &'a [u8],
}

impl Value<'_> {
    /// Bytes that it takes beside its place.
    fn bytes(&self) -> usize {
        match self {
            Value::Tuple(items) | Value::List(items) => size_of_val(items.as_slice()),
            Value::Dictionary(pairs) => size_of_val(pairs.as_slice()),
            Value::Storage(storage) => storage.key.len(),
            Value::Tensor(view) => {
                view.storage.key.len() + size_of_val(view.size.as_slice()) + size_of_val(view.strides.as_slice())
            }
            Value::Other | Value::Whole(_) | Value::Text(_) | Value::Global(_) => 0,
        }
    }
}

impl<'a> Pickle<'a> {
    /// Reads one pickle from the beginning of `bytes`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut machine = Machine {
            rest: bytes,
            values: Vec::new(),
            copied: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: FxHashMap::default(),
        };
        while !machine.step()? {}
        let root = machine.pop()?;
        Ok(Self { values: machine.values, root, rest: machine.rest })
    }

    /// The tensors of the dictionary, or of the one inside it that has the weights.
    pub fn tensors(&self) -> Result<Vec<(String, View)>, String> {
        let mut at = self.root;
        for _ in 0..=INSIDE.len() {
            let Value::Dictionary(pairs) = &self.values[at] else { break };
            // Many can have one long name.
            let spelled = pairs.iter().filter_map(|(name, _)| self.text(*name)).fold(0, |sum, name| name.len().saturating_add(sum));
            if spelled > MOST_COPIED {
                return Err(format!("the names of its values take more than {} MiB", MOST_COPIED >> 20));
            }
            let named = || pairs.iter().filter_map(|(name, value)| Some((self.text(*name)?, *value)));
            let tensor = |(name, value): (&str, Id)| match &self.values[value] {
                Value::Tensor(view) => Some((name.to_owned(), view.clone())),
                _ => None,
            };
            let tensors: Vec<_> = named().filter_map(tensor).collect();
            if !tensors.is_empty() {
                return Ok(tensors);
            }
            let inside = |wanted: &&str| named().find(|(name, _)| name == wanted).map(|(_, value)| value);
            let Some(next) = INSIDE.iter().find_map(inside) else { break };
            at = next;
        }
        Err("it is no dictionary of tensors".to_owned())
    }

    /// A list of texts.
    pub fn texts(&self) -> Option<Vec<&'a str>> {
        match &self.values[self.root] {
            Value::List(items) => items.iter().map(|item| self.text(*item)).collect(),
            _ => None,
        }
    }

    /// All storages that it names.
    pub fn storages(&self) -> impl Iterator<Item = &Storage> {
        self.values.iter().filter_map(|value| if let Value::Storage(storage) = value { Some(storage) } else { None })
    }

    fn text(&self, id: Id) -> Option<&'a str> {
        if let Value::Text(text) = self.values[id] { Some(text) } else { None }
    }
}

/// The machine of pickles, without what runs code. Values are named by their number, so that no value has to be dropped with
/// all that is inside it.
struct Machine<'a> {
    rest: &'a [u8],
    values: Vec<Value<'a>>,
    /// Bytes of all of them beside their places.
    copied: usize,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: FxHashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    /// Does what the next byte says; `true` at the end.
    fn step(&mut self) -> Result<bool, String> {
        let code = self.take(1)?[0];
        match code {
            b'.' => return Ok(true),
            // Versions and frames.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.popped()?),
            b'2' => {
                let top = *self.stack.last().ok_or(EMPTY)?;
                self.push_id(top)?;
            }
            b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
            b'G' => {
                self.take(8)?;
                self.push(Value::Other)?;
            }
            b'J' | b'K' | b'M' | 0x8a => self.whole(code)?,
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'C' | b'B' => self.text(code)?,
            b'c' | 0x93 => self.global(code)?,
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(code)?,
            b')' => self.push(Value::Tuple(Vec::new()))?,
            b'}' => self.push(Value::Dictionary(Vec::new()))?,
            b']' => self.push(Value::List(Vec::new()))?,
            b't' => {
                let items = self.popped()?;
                self.push(Value::Tuple(items))?;
            }
            0x85..=0x87 => {
                let at = self.stack.len().checked_sub(usize::from(code - 0x84)).ok_or(EMPTY)?;
                let items = self.stack.split_off(at);
                self.push(Value::Tuple(items))?;
            }
            b'a' | b'e' | b's' | b'u' => self.fill(code)?,
            b'Q' => self.storage()?,
            b'R' => self.call()?,
            b'b' => self.attributes()?,
            _ => return Err(format!("it does what no file of tensors needs (code {code:#04x})")),
        }
        Ok(false)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        self.rest.split_off(..bytes).ok_or_else(|| "it ends too early".to_owned())
    }

    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        self.copied += value.bytes();
        if self.copied > MOST_COPIED {
            return Err(format!("its values take more than {} MiB", MOST_COPIED >> 20));
        }
        self.values.push(value);
        self.push_id(self.values.len() - 1)
    }

    fn push_id(&mut self, id: Id) -> Result<(), String> {
        self.stack.push(id);
        if self.values.len() > MOST_VALUES || self.stack.len() > MOST_VALUES || self.marks.len() > MOST_VALUES {
            return Err(format!("it has more than {MOST_VALUES} values"));
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, String> {
        self.stack.pop().ok_or_else(|| EMPTY.to_owned())
    }

    /// Everything down to the last mark.
    fn popped(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or(EMPTY)?;
        Ok(self.stack.split_off(mark))
    }

    fn whole(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'J' => Value::Whole(i64::from(self.number(4)? as u32 as i32)),
            b'K' => Value::Whole(self.number(1)? as i64),
            b'M' => Value::Whole(self.number(2)? as i64),
            _ => {
                let length = self.number(1)? as usize;
                let bytes = self.take(length)?;
                // Signed; a longer one is a magic number.
                let fill = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
                let mut wide = [fill; 8];
                match wide.get_mut(..length) {
                    Some(low) => {
                        low.copy_from_slice(bytes);
                        Value::Whole(i64::from_le_bytes(wide))
                    }
                    None => Value::Other,
                }
            }
        };
        self.push(value)
    }

    fn text(&mut self, code: u8) -> Result<(), String> {
        let length = self.number(match code {
            0x8c | b'U' | b'C' => 1,
            0x8d => 8,
            _ => 4,
        })?;
        let bytes = self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        self.push(std::str::from_utf8(bytes).map_or(Value::Other, Value::Text))
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let end = self.rest.iter().take(1 << 10).position(|byte| *byte == b'\n').ok_or("it has a name that never ends")?;
        let line = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(line).map_err(|_| "it has a name that is not text".to_owned())
    }

    fn global(&mut self, code: u8) -> Result<(), String> {
        let (module, name) = if code == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (&self.values[module], &self.values[name]) {
                (Value::Text(module), Value::Text(name)) => (*module, *name),
                _ => return Err(UNFIT.to_owned()),
            }
        };
        let found = GLOBALS.iter().find(|(of, known, _)| (*of, *known) == (module, name));
        let (.., global) = found.ok_or_else(|| {
            format!(
                "it names {}.{}, and loading it would run that; only tensors are read",
                module.escape_debug(),
                name.escape_debug()
            )
        })?;
        self.push(Value::Global(*global))
    }

    fn remember(&mut self, code: u8) -> Result<(), String> {
        let key = match code {
            b'q' | b'h' => self.number(1)? as u32,
            b'r' | b'j' => self.number(4)? as u32,
            _ => self.memo.len() as u32,
        };
        if matches!(code, b'h' | b'j') {
            let id = *self.memo.get(&key).ok_or("it asks for a value that it did not keep")?;
            return self.push_id(id);
        }
        let top = *self.stack.last().ok_or(EMPTY)?;
        self.memo.insert(key, top);
        if self.memo.len() > MOST_VALUES { Err(format!("it keeps more than {MOST_VALUES} values")) } else { Ok(()) }
    }

    /// Puts what is on the stack into the list or the dictionary below.
    fn fill(&mut self, code: u8) -> Result<(), String> {
        let items = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.popped()?,
        };
        let target = *self.stack.last().ok_or(EMPTY)?;
        match &mut self.values[target] {
            Value::List(list) if matches!(code, b'a' | b'e') => list.extend(items),
            Value::Dictionary(pairs) if matches!(code, b's' | b'u') => {
                pairs.extend(items.as_chunks().0.iter().map(|[name, value]| (*name, *value)));
            }
            _ => return Err(UNFIT.to_owned()),
        }
        Ok(())
    }

    /// `("storage", its kind, its key, a device, a number of elements)`, and in old files a view of another.
    fn storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let Value::Tuple(items) = &self.values[id] else { return Err(UNFIT.to_owned()) };
        let item = |at: usize| items.get(at).map(|id| &self.values[*id]);
        let (Some(Value::Text("storage")), Some(Value::Global(Global::StorageOf(dtype))), Some(Value::Text(key))) =
            (item(0), item(1), item(2))
        else {
            return Err(UNFIT.to_owned());
        };
        if item(5).is_some_and(|view| !matches!(view, Value::Other)) {
            return Err("it has a view of a storage, as files before PyTorch 0.4 have".to_owned());
        }
        self.push(Value::Storage(Storage { key: (*key).to_owned(), dtype: *dtype }))
    }

    fn call(&mut self) -> Result<(), String> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let (Value::Tuple(items), Value::Global(global)) = (&self.values[arguments], &self.values[callee]) else {
            return Err(UNFIT.to_owned());
        };
        let made = match global {
            Global::Dictionary => self.dictionary(items)?,
            Global::Tensor => Value::Tensor(self.view(items).ok_or(UNFIT)?),
            Global::Parameter => match items.first().map(|id| &self.values[*id]) {
                Some(Value::Tensor(view)) => Value::Tensor(view.clone()),
                _ => return Err(UNFIT.to_owned()),
            },
            Global::StorageOf(_) => return Err(UNFIT.to_owned()),
        };
        self.push(made)
    }

    /// Without arguments, or with a list of pairs.
    fn dictionary(&self, arguments: &[Id]) -> Result<Value<'a>, String> {
        let pairs = match arguments.first().map(|id| &self.values[*id]) {
            None => &Vec::new(),
            Some(Value::List(pairs)) => pairs,
            Some(_) => return Err(UNFIT.to_owned()),
        };
        let pair = |id: &Id| match &self.values[*id] {
            Value::Tuple(pair) | Value::List(pair) => Some((*pair.first()?, *pair.get(1)?)),
            _ => None,
        };
        Ok(Value::Dictionary(pairs.iter().map(pair).collect::<Option<_>>().ok_or(UNFIT)?))
    }

    /// `(storage, offset, size, strides, ...)`.
    fn view(&self, arguments: &[Id]) -> Option<View> {
        let value = |at: usize| arguments.get(at).map(|id| &self.values[*id]);
        let whole = |value: &Value<'_>| if let Value::Whole(number) = value { usize::try_from(*number).ok() } else { None };
        let numbers = |at: usize| match value(at)? {
            // A tensor has a handful of dimensions.
            Value::Tuple(items) if items.len() <= 16 => items.iter().map(|id| whole(&self.values[*id])).collect(),
            _ => None,
        };
        let Value::Storage(storage) = value(0)? else { return None };
        let (size, strides): (Vec<usize>, Vec<usize>) = (numbers(2)?, numbers(3)?);
        (size.len() == strides.len()).then(|| View {
            storage: storage.clone(),
            offset: value(1).and_then(whole).unwrap_or(0),
            size,
            strides,
        })
    }

    /// A dictionary may have attributes, of which none is needed.
    fn attributes(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last().map(|id| &self.values[*id]) {
            Some(Value::Dictionary(_)) => Ok(()),
            _ => Err(UNFIT.to_owned()),
        }
    }
}

const EMPTY: &str = "its stack is empty where something must be on it";
const UNFIT: &str = "it has values where others must be";
