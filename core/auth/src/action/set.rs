//! A set of actions, of fixed size.

use super::Action;

const WORDS: usize = 3;

const _: () = assert!(Action::ALL.len() <= WORDS * 64);

/// A set of actions. One with `anyAction` holds every action, and is written as that alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ActionSet([u64; WORDS]);

impl ActionSet {
    pub const EMPTY: ActionSet = ActionSet([0; WORDS]);

    /// Every action.
    pub const ANY: ActionSet = ActionSet::EMPTY.with(Action::AnyAction);

    /// A set of these actions.
    pub const fn of(actions: &[Action]) -> ActionSet {
        let mut set = ActionSet::EMPTY;
        let mut at = 0;
        while at < actions.len() {
            set = set.with(actions[at]);
            at += 1;
        }
        set
    }

    /// The set with one action more.
    pub const fn with(self, action: Action) -> ActionSet {
        let mut set = self;
        if matches!(action, Action::AnyAction) {
            let mut at = 0;
            while at < Action::ALL.len() {
                set.0[at / 64] |= 1 << (at % 64);
                at += 1;
            }
        }
        set.0[action as usize / 64] |= 1 << (action as usize % 64);
        set
    }

    /// The actions of either set.
    #[inline]
    pub const fn union(self, other: ActionSet) -> ActionSet {
        let mut set = self;
        let mut word = 0;
        while word < WORDS {
            set.0[word] |= other.0[word];
            word += 1;
        }
        set
    }

    /// The actions of this set that the other one does not have. Of a set with `anyAction` remains
    /// what is left of all actions, without `anyAction`.
    pub const fn without(self, other: ActionSet) -> ActionSet {
        let mut set = self;
        let mut word = 0;
        while word < WORDS {
            set.0[word] &= !other.0[word];
            word += 1;
        }
        let any = Action::AnyAction as usize;
        if !other.is_empty() {
            set.0[any / 64] &= !(1 << (any % 64));
        }
        set
    }

    pub fn insert(&mut self, action: Action) {
        *self = self.with(action);
    }

    #[inline]
    pub const fn contains(self, action: Action) -> bool {
        self.0[action as usize / 64] & (1 << (action as usize % 64)) != 0
    }

    /// Whether this set has every action of the other one.
    #[inline]
    pub fn contains_all(self, other: ActionSet) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .all(|(word, other)| other & !word == 0)
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        let mut all = 0;
        let mut word = 0;
        while word < WORDS {
            all |= self.0[word];
            word += 1;
        }
        all == 0
    }

    /// The actions in the order in which MongoDB prints them.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL
            .iter()
            .copied()
            .filter(move |action| self.contains(*action))
    }

    /// The names that a privilege shows: of a set with `anyAction` that alone.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let is_any = self.contains(Action::AnyAction);
        self.iter()
            .filter(move |action| !is_any || *action == Action::AnyAction)
            .map(Action::name)
    }
}

impl FromIterator<Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> ActionSet {
        actions.into_iter().fold(ActionSet::EMPTY, ActionSet::with)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pinion_bson::testing::Rng;

    use super::*;

    #[test]
    fn any_action_is_all_of_them() {
        assert!(
            Action::ALL
                .iter()
                .all(|action| ActionSet::ANY.contains(*action))
        );
        assert_eq!(ActionSet::ANY.names().collect::<Vec<_>>(), ["anyAction"]);
        let find = ActionSet::of(&[Action::Find]);
        let rest = ActionSet::ANY.without(find);
        assert!(!rest.contains(Action::Find) && !rest.contains(Action::AnyAction));
        assert_eq!(rest.iter().count(), Action::ALL.len() - 2);
        assert_eq!(ActionSet::ANY.without(ActionSet::EMPTY), ActionSet::ANY);
        assert!(find.without(ActionSet::ANY).is_empty());
    }

    #[test]
    fn names_are_in_order() {
        let set = ActionSet::of(&[
            Action::Update,
            Action::Find,
            Action::KillCursors,
            Action::Find,
        ]);
        assert_eq!(
            set.names().collect::<Vec<_>>(),
            ["find", "killCursors", "update"]
        );
    }

    /// Sets of any actions but `anyAction` behave as ordered sets do.
    #[test]
    fn sets_are_sets() {
        let mut rng = Rng::new(7);
        let mut random = || -> (ActionSet, BTreeSet<Action>) {
            let count = rng.below(12);
            let model: BTreeSet<Action> = (0..count)
                .map(|_| rng.pick(Action::ALL))
                .filter(|action| *action != Action::AnyAction)
                .collect();
            (model.iter().copied().collect(), model)
        };
        let listed = |set: ActionSet| set.iter().collect::<BTreeSet<Action>>();
        for _ in 0..500 {
            let ((a, model_a), (b, model_b)) = (random(), random());
            assert_eq!(listed(a), model_a);
            assert_eq!(a.is_empty(), model_a.is_empty());
            assert_eq!(listed(a.union(b)), &model_a | &model_b);
            assert_eq!(listed(a.without(b)), &model_a - &model_b);
            assert_eq!(a.contains_all(b), model_a.is_superset(&model_b));
        }
    }
}
