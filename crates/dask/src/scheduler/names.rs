//! Texts that stand in many places, kept once: hosts, resources, types of results, actions.

use std::sync::Arc;

use super::ids::NameId;
use crate::hashing::Map;

/// Names by number and back; none is ever dropped, as there are few
#[derive(Debug, Default)]
pub(super) struct Names {
    texts: Vec<Arc<str>>,
    numbers: Map<Arc<str>, NameId>,
}

impl Names {
    pub(super) fn intern(&mut self, text: &str) -> NameId {
        if let Some(&name) = self.numbers.get(text) {
            return name;
        }
        let name = NameId::at(self.texts.len());
        let text = Arc::<str>::from(text);
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, name);
        name
    }

    pub(super) fn find(&self, text: &str) -> Option<NameId> {
        self.numbers.get(text).copied()
    }

    pub(super) fn text(&self, name: NameId) -> &Arc<str> {
        &self.texts[name.index()]
    }
}
