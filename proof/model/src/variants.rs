//! The models that are searched, by name: the right protocol in several worlds, and broken ones.

mod losses;
mod renewals;
mod restarts;
mod tokens;

use crate::rules::{Quorum, Rules, World};

/// A model with a name.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// What it is about, for people.
    pub about: &'static str,
    /// The model.
    pub model: Quorum,
    /// What is wrong with it, if it is broken on purpose.
    pub broken: Option<Broken>,
}

/// What is wrong with a model that is broken on purpose.
#[derive(Debug, Clone)]
pub struct Broken {
    /// The property that it violates.
    pub violates: &'static str,
    /// The same model with the fault mended.
    pub mended: Quorum,
    /// A counter-example, see [`story`](crate::story).
    pub story: &'static str,
}

/// All variants, those that hold and those that are broken.
pub fn all() -> Vec<Variant> {
    [restarts::all(), tokens::all(), losses::all(), renewals::all()].concat()
}

/// The variant of this name.
pub fn named(name: &str) -> Option<Variant> {
    all().into_iter().find(|variant| variant.name == name)
}

/// What Latchwork does where nothing goes wrong. The rest is said by the methods below.
fn variant(name: &'static str, about: &'static str) -> Variant {
    let model = Quorum { world: World::CALM, rules: Rules::LATCHWORK };
    Variant { name, about, model, broken: None }
}

impl Variant {
    fn world(mut self, world: World) -> Self {
        self.model.world = world;
        self
    }

    fn rules(mut self, rules: Rules) -> Self {
        self.model.rules = rules;
        self
    }

    /// It is broken, and doing as Latchwork does mends it, unless one of the next two says what else.
    fn violates(mut self, violates: &'static str, story: &'static str) -> Self {
        let mended = Quorum { rules: Rules::LATCHWORK, ..self.model.clone() };
        self.broken = Some(Broken { violates, mended, story });
        self
    }

    fn mended_by(self, rules: Rules) -> Self {
        let mend = |broken| Broken { mended: Quorum { rules, ..self.model.clone() }, ..broken };
        Self { broken: self.broken.map(mend), ..self }
    }

    /// The rules are right, but they allow for no worse world than this.
    fn allowed_for(self, world: World) -> Self {
        let mend = |broken| Broken { mended: Quorum { world, ..self.model.clone() }, ..broken };
        Self { broken: self.broken.map(mend), ..self }
    }
}
