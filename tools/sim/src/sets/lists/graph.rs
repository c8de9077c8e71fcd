//! Directed graphs of few nodes: strongly connected components, and a cycle to show.

use std::collections::VecDeque;

/// The nodes behind each node.
pub type Edges = Vec<Vec<usize>>;

/// The strongly connected components that have a cycle. No node has an edge to itself but where
/// that is a cycle.
pub fn cyclic_components(edges: &Edges) -> Vec<Vec<usize>> {
    let mut search = Search {
        index: vec![None; edges.len()],
        low: vec![0; edges.len()],
        is_open: vec![false; edges.len()],
        open: Vec::new(),
        next: 0,
        found: Vec::new(),
    };
    for node in 0..edges.len() {
        if search.index[node].is_none() {
            search.from(edges, node);
        }
    }
    let mut found = search.found;
    found.retain(|component| component.len() > 1 || edges[component[0]].contains(&component[0]));
    found
}

/// Tarjan's search, with its own stack: a history may be one long path.
struct Search {
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    is_open: Vec<bool>,
    open: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl Search {
    fn enter(&mut self, node: usize) {
        self.index[node] = Some(self.next);
        self.low[node] = self.next;
        self.next += 1;
        self.open.push(node);
        self.is_open[node] = true;
    }

    fn from(&mut self, edges: &Edges, root: usize) {
        let mut path = vec![(root, 0)];
        self.enter(root);
        while let Some((node, nth)) = path.last_mut() {
            let node = *node;
            if let Some(&next) = edges[node].get(*nth) {
                *nth += 1;
                match self.index[next] {
                    None => {
                        self.enter(next);
                        path.push((next, 0));
                    }
                    Some(index) if self.is_open[next] => {
                        self.low[node] = self.low[node].min(index);
                    }
                    Some(_) => {}
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                self.low[*parent] = self.low[*parent].min(self.low[node]);
            }
            if Some(self.low[node]) == self.index[node] {
                let begin = self.open.iter().rposition(|open| *open == node);
                let component = self.open.split_off(begin.expect("it is open"));
                component
                    .iter()
                    .for_each(|node| self.is_open[*node] = false);
                self.found.push(component);
            }
        }
    }
}

/// A shortest path between two nodes, both of them included; from a node to itself a shortest
/// cycle.
pub fn path(edges: &Edges, from: usize, to: usize) -> Option<Vec<usize>> {
    let mut before: Vec<Option<usize>> = vec![None; edges.len()];
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        for &next in &edges[node] {
            if before[next].is_some() {
                continue;
            }
            before[next] = Some(node);
            if next == to {
                let mut path = vec![to];
                let mut at = node;
                while at != from {
                    path.push(at);
                    at = before[at].expect("it was reached");
                }
                path.push(from);
                path.reverse();
                return Some(path);
            }
            queue.push_back(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(edges: &[(usize, usize)], expected: &[&[usize]]) {
        let mut graph: Edges = vec![Vec::new(); 6];
        edges.iter().for_each(|(from, to)| graph[*from].push(*to));
        let mut found = cyclic_components(&graph);
        found
            .iter_mut()
            .for_each(|component| component.sort_unstable());
        found.sort_unstable();
        assert_eq!(found, expected, "{edges:?}");
        for component in found {
            let cycle = path(&graph, component[0], component[0]).unwrap();
            assert_eq!(cycle.first(), cycle.last());
            assert!(cycle.windows(2).all(|two| graph[two[0]].contains(&two[1])));
        }
    }

    #[test]
    fn components_with_a_cycle_are_found() {
        check(&[], &[]);
        check(&[(0, 1), (1, 2), (0, 2)], &[]);
        check(&[(3, 3)], &[&[3]]);
        check(&[(0, 1), (1, 0), (1, 2)], &[&[0, 1]]);
        check(
            &[(0, 1), (1, 2), (2, 0), (3, 4), (4, 3), (2, 3)],
            &[&[0, 1, 2], &[3, 4]],
        );
        check(
            &[(0, 1), (1, 2), (2, 3), (3, 1), (0, 5), (5, 4)],
            &[&[1, 2, 3]],
        );
    }

    #[test]
    fn a_path_is_a_shortest_one() {
        let edges = vec![vec![1, 2], vec![3], vec![3, 4], vec![4], vec![]];
        assert_eq!(path(&edges, 0, 4), Some(vec![0, 2, 4]));
        assert_eq!(path(&edges, 4, 0), None);
        assert_eq!(path(&edges, 0, 0), None);
    }
}
