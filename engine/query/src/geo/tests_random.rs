//! Random shapes against a plain computation, and indexes against looking at every document.
//!
//! Great circles are straight lines on a plane that touches the sphere (the gnomonic projection),
//! so that shapes of less than a hemisphere can be related there by ordinary planar geometry. What
//! is nearer to a boundary than rounding may move it is left out.

use pinion_bson::{RawBson, RawDocumentBuf, rawbson, rawdoc};
use s2::point::Point;

use super::flat::FlatPoint;
use super::index::GeoIndex;
use super::shape::sphere_point;
use super::{GeoPredicate, Near, Search};
use crate::index::{IndexKeys, IndexSpec, index_keys};
use crate::path::Path;

/// A generator whose numbers are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() * end as f64) as usize
    }
}

type At = (f64, f64);

/// A ring around a center whose edges do not cross: its vertices are in the order of their
/// directions.
fn ring(random: &mut Random, center: At, radius: f64) -> Vec<At> {
    let count = 3 + random.below(9);
    let turn = random.within(0.0, std::f64::consts::TAU);
    let mut ring: Vec<At> = (0..count)
        .map(|i| {
            let angle = turn + std::f64::consts::TAU * i as f64 / count as f64;
            let reach = radius * random.within(0.4, 1.0);
            let stretch = center.1.to_radians().cos();
            (
                center.0 + reach * angle.cos() / stretch,
                center.1 + reach * angle.sin(),
            )
        })
        .collect();
    ring.push(ring[0]);
    ring
}

fn longitude(lng: f64) -> f64 {
    (lng + 540.0).rem_euclid(360.0) - 180.0
}

fn position(at: At) -> RawBson {
    rawbson!([longitude(at.0), at.1])
}

fn positions(at: &[At]) -> RawBson {
    let mut array = pinion_bson::RawArrayBuf::new();
    at.iter().for_each(|at| array.push(position(*at)));
    RawBson::Array(array)
}

fn geometry(kind: &str, coordinates: RawBson) -> RawBson {
    RawBson::Document(rawdoc! { "type": kind, "coordinates": coordinates })
}

fn polygon(ring: &[At]) -> RawBson {
    geometry("Polygon", rawbson!([positions(ring)]))
}

/// A point on the plane that touches the sphere at the center.
fn projected(center: At, at: At) -> At {
    let point = |at: At| -> Point {
        sphere_point(&FlatPoint {
            x: longitude(at.0),
            y: at.1,
        })
        .expect("a longitude and a latitude")
    };
    let (axis, p) = (point(center).0, point(at).0);
    let east = s2::r3::vector::Vector::new(-axis.y, axis.x, 0.0).normalize();
    let north = axis.cross(&east);
    let depth = p.dot(&axis);
    assert!(depth > 0.1, "within the hemisphere");
    (p.dot(&east) / depth, p.dot(&north) / depth)
}

fn cross(a: At, b: At, c: At) -> f64 {
    (b.0 - a.0) * (c.1 - a.1) - (b.1 - a.1) * (c.0 - a.0)
}

fn edges(ring: &[At]) -> impl Iterator<Item = (At, At)> {
    ring.windows(2).map(|pair| (pair[0], pair[1]))
}

fn distance_to_edge(p: At, (a, b): (At, At)) -> f64 {
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let t = ((p.0 - a.0) * dx + (p.1 - a.1) * dy) / (dx * dx + dy * dy);
    let t = t.clamp(0.0, 1.0);
    (p.0 - a.0 - t * dx).hypot(p.1 - a.1 - t * dy)
}

/// Whether a ring of the plane contains a point; `None` too near to the boundary.
fn contains(ring: &[At], p: At) -> Option<bool> {
    if edges(ring).any(|edge| distance_to_edge(p, edge) < 1e-9) {
        return None;
    }
    let crossings = edges(ring).filter(|(a, b)| {
        (a.1 > p.1) != (b.1 > p.1) && p.0 < (b.0 - a.0) * (p.1 - a.1) / (b.1 - a.1) + a.0
    });
    Some(crossings.count() % 2 == 1)
}

/// Whether chains of the plane cross; `None` where a vertex of one is too near to the other.
fn chains_cross(one: &[At], other: &[At]) -> Option<bool> {
    let near = |chain: &[At], other: &[At]| {
        chain
            .iter()
            .any(|p| edges(other).any(|edge| distance_to_edge(*p, edge) < 1e-9))
    };
    if near(one, other) || near(other, one) {
        return None;
    }
    let crossing = |(a, b): (At, At), (c, d): (At, At)| {
        cross(a, b, c) * cross(a, b, d) < 0.0 && cross(c, d, a) * cross(c, d, b) < 0.0
    };
    Some(edges(one).any(|edge| edges(other).any(|second| crossing(edge, second))))
}

#[track_caller]
fn matches(operators: RawDocumentBuf, value: &RawBson, expected: bool) {
    let predicate = GeoPredicate::parse(&operators).expect("the operator parses");
    let matched = predicate
        .matches(value.as_raw_bson_ref())
        .expect("unbounded");
    assert_eq!(matched, expected, "{operators:?} on {value:?}");
}

fn within(geometry: &RawBson) -> RawDocumentBuf {
    rawdoc! { "$geoWithin": { "$geometry": geometry.clone() } }
}

fn intersects(geometry: &RawBson) -> RawDocumentBuf {
    rawdoc! { "$geoIntersects": { "$geometry": geometry.clone() } }
}

/// Where shapes are made: over the antimeridian, near a pole, and elsewhere.
fn centers(random: &mut Random) -> At {
    match random.below(4) {
        0 => (179.0, random.within(-60.0, 60.0)),
        1 => (random.within(-180.0, 180.0), 70.0),
        _ => (random.within(-180.0, 180.0), random.within(-60.0, 60.0)),
    }
}

#[test]
fn shapes_relate_as_on_a_plane_that_touches_the_sphere() {
    let mut random = Random(7);
    let (mut inside, mut overlapping, mut apart) = (0, 0, 0);
    for _ in 0..1000 {
        let center = centers(&mut random);
        let outer = ring(&mut random, center, 10.0);
        let shift = (random.within(-9.0, 9.0), random.within(-9.0, 9.0));
        let size = random.within(0.2, 8.0);
        let other_center = (
            center.0 + shift.0 / center.1.to_radians().cos(),
            center.1 + shift.1,
        );
        let other = ring(&mut random, other_center, size);
        let flat =
            |chain: &[At]| -> Vec<At> { chain.iter().map(|at| projected(center, *at)).collect() };
        let (flat_outer, flat_other) = (flat(&outer), flat(&other));
        let (shape, value) = (polygon(&outer), polygon(&other));
        for at in &other {
            let point = geometry("Point", position(*at));
            if let Some(expected) = contains(&flat_outer, projected(center, *at)) {
                matches(within(&shape), &point, expected);
                matches(intersects(&shape), &point, expected);
                matches(intersects(&point), &shape, expected);
            }
        }
        let first = contains(&flat_outer, flat_other[0]);
        let around = contains(&flat_other, flat_outer[0]);
        if let (Some(crosses), Some(first), Some(around)) =
            (chains_cross(&flat_outer, &flat_other), first, around)
        {
            let is_within = !crosses && first;
            let meets = crosses || first || around;
            matches(within(&shape), &value, is_within);
            matches(intersects(&shape), &value, meets);
            matches(intersects(&value), &shape, meets);
            inside += usize::from(is_within);
            overlapping += usize::from(crosses);
            apart += usize::from(!meets);
        }
        let line = &other[..other.len() - 1];
        let flat_line = &flat_other[..other.len() - 1];
        if let (Some(crosses), Some(first)) = (chains_cross(&flat_outer, flat_line), first) {
            let value = geometry("LineString", positions(line));
            matches(within(&shape), &value, !crosses && first);
            matches(intersects(&shape), &value, crosses || first);
            matches(intersects(&value), &shape, crosses || first);
        }
    }
    assert!(inside > 100 && overlapping > 100 && apart > 100);
}

/// A random value that an index of the sphere holds.
fn value(random: &mut Random) -> RawBson {
    let center = centers(random);
    let at = (center.0, center.1);
    match random.below(6) {
        0 => position(at),
        1 => geometry("Point", position(at)),
        2 => {
            let size = random.within(0.01, 10.0);
            polygon(&ring(random, at, size))
        }
        3 => {
            let size = random.within(0.01, 10.0);
            let ring = ring(random, at, size);
            geometry("LineString", positions(&ring[..ring.len() - 1]))
        }
        4 => {
            let size = random.within(0.1, 10.0);
            let ring = ring(random, at, size);
            geometry("MultiPoint", positions(&ring))
        }
        _ => geometry("Point", position((random.within(-180.0, 180.0), at.1))),
    }
}

fn document_keys(index: &IndexSpec, document: &RawDocumentBuf) -> Vec<i64> {
    cells(&index_keys(document, index).expect("keys"))
}

fn cells(found: &IndexKeys<'_>) -> Vec<i64> {
    let keys = found.keys.iter().map(|key| match key.values()[0] {
        pinion_bson::RawBsonRef::Int64(key) => key,
        other => panic!("{other:?} is no cell"),
    });
    keys.collect()
}

fn in_ranges(ranges: &[(i64, i64)], keys: &[i64]) -> bool {
    let within = |key: &i64| ranges.iter().any(|(low, high)| (low..=high).contains(&key));
    keys.iter().any(within)
}

fn check_index(index: &IndexSpec, random: &mut Random, shapes: &[RawDocumentBuf], flat: bool) {
    let documents: Vec<(RawDocumentBuf, Vec<i64>)> = (0..300)
        .map(|_| {
            let value = if flat {
                rawbson!([random.within(-180.0, 180.0), random.within(-85.0, 85.0)])
            } else {
                value(random)
            };
            let document = rawdoc! { "a": value };
            let keys = document_keys(index, &document);
            (document, keys)
        })
        .collect();
    let geo = index.geo().expect("a geospatial index");
    let (mut matched, mut left_out) = (0, 0);
    for operators in shapes {
        let predicate = GeoPredicate::parse(operators).expect("the operator parses");
        let Some(ranges) = geo.ranges(&predicate).expect("unbounded") else {
            continue;
        };
        for (document, keys) in &documents {
            let value = crate::value::field(document, "a").expect("written");
            let found = in_ranges(&ranges, keys);
            if predicate.matches(value).expect("unbounded") {
                assert!(found, "{document:?} {operators:?}");
                matched += 1;
            } else {
                left_out += usize::from(!found);
            }
        }
    }
    assert!(matched > 100 && left_out > matched, "{matched} {left_out}");
}

#[test]
fn indexes_of_the_sphere_leave_out_nothing_that_matches() {
    let mut random = Random(11);
    let shapes: Vec<RawDocumentBuf> = (0..100)
        .map(|i| {
            let center = centers(&mut random);
            let size = random.within(1.0, 20.0);
            let at = rawbson!([longitude(center.0), center.1]);
            match i % 3 {
                0 => rawdoc! { "$geoWithin": { "$centerSphere": [at, size.to_radians()] } },
                1 => within(&polygon(&ring(&mut random, center, size.min(10.0)))),
                _ => intersects(&polygon(&ring(&mut random, center, size.min(10.0)))),
            }
        })
        .collect();
    let options = [
        rawdoc! {},
        rawdoc! { "finestIndexedLevel": 10, "coarsestIndexedLevel": 4 },
        rawdoc! { "2dsphereIndexVersion": 2 },
    ];
    for options in options {
        let mut listed = pinion_bson::DocBuilder::new();
        listed
            .append_all(&rawdoc! { "name": "i", "key": { "a": "2dsphere" } })
            .append_all(&options);
        let index = IndexSpec::parse(&listed.finish()).expect("a specification");
        check_index(&index, &mut random, &shapes, false);
    }
}

#[test]
fn indexes_of_the_plane_leave_out_nothing_that_matches() {
    let mut random = Random(13);
    let shapes: Vec<RawDocumentBuf> = (0..100)
        .map(|i| {
            let (x, y) = (random.within(-150.0, 150.0), random.within(-60.0, 60.0));
            let size = random.within(1.0, 20.0);
            match i % 4 {
                0 => rawdoc! { "$geoWithin": { "$centerSphere": [[x, y], size.to_radians()] } },
                1 => rawdoc! { "$geoWithin": { "$box": [[x, y], [x + size, y - size]] } },
                2 => rawdoc! { "$geoWithin": { "$center": [[x, y], size] } },
                _ => {
                    let corners = rawbson!([[x, y], [x + size, y], [x, y + size]]);
                    rawdoc! { "$geoWithin": { "$polygon": corners } }
                }
            }
        })
        .collect();
    for bits in [26, 8] {
        let listed = rawdoc! { "name": "i", "key": { "a": "2d" }, "bits": bits };
        let index = IndexSpec::parse(&listed).expect("a specification");
        check_index(&index, &mut random, &shapes, true);
    }
}

/// Searches outward and compares with sorting all documents, which come with their keys, by
/// distance.
fn check_search(
    index: &IndexSpec,
    operators: &RawDocumentBuf,
    documents: &[(RawDocumentBuf, Vec<i64>)],
) {
    let near = std::sync::Arc::new(Near::parse(operators).expect("the operators parse"));
    let path = Path::parse("a");
    let mut expected: Vec<f64> = documents
        .iter()
        .filter_map(|(document, _)| near.document_distance(document, &path).expect("unbounded"))
        .map(|(distance, _)| distance)
        .filter(|distance| near.is_wanted(*distance))
        .collect();
    expected.sort_by(f64::total_cmp);
    let geo: GeoIndex = index.geo().expect("a geospatial index").clone();
    let mut search = Search::new(near, path, geo);
    let mut seen = vec![false; documents.len()];
    let (mut waiting, mut given): (Vec<f64>, Vec<f64>) = Default::default();
    let mut found = 0;
    while let Some(ranges) = search.next(found).expect("unbounded") {
        found = 0;
        for (place, (document, keys)) in documents.iter().enumerate() {
            if !seen[place] && in_ranges(&ranges, keys) {
                seen[place] = true;
                found += 1;
                waiting.extend(search.distance(document).expect("unbounded"));
            }
        }
        waiting.sort_by(f64::total_cmp);
        let ready = waiting.partition_point(|distance| *distance <= search.reach());
        given.extend(waiting.drain(..ready));
    }
    assert_eq!(given, expected, "{operators:?}");
}

#[test]
fn searches_outward_find_all_in_the_order_of_distance() {
    let mut random = Random(17);
    let sphere = rawdoc! { "name": "i", "key": { "a": "2dsphere" } };
    let sphere = IndexSpec::parse(&sphere).expect("a specification");
    let with_keys = |index: &IndexSpec, document: RawDocumentBuf| {
        let keys = document_keys(index, &document);
        (document, keys)
    };
    let documents: Vec<(RawDocumentBuf, Vec<i64>)> = (0..500)
        .map(|_| with_keys(&sphere, rawdoc! { "a": value(&mut random) }))
        .collect();
    for i in 0..20 {
        let at = centers(&mut random);
        let center = geometry("Point", position(at));
        let near = match i % 2 {
            0 => rawdoc! { "$geometry": center },
            _ => rawdoc! {
                "$geometry": center,
                "$minDistance": random.within(0.0, 1e6),
                "$maxDistance": random.within(1e5, 1e7),
            },
        };
        check_search(&sphere, &rawdoc! { "$near": near }, &documents);
        let legacy =
            rawdoc! { "$nearSphere": position(at), "$maxDistance": random.within(0.0, 3.0) };
        check_search(&sphere, &legacy, &documents);
    }
    let plane = rawdoc! { "name": "i", "key": { "a": "2d" } };
    let plane = IndexSpec::parse(&plane).expect("a specification");
    let documents: Vec<(RawDocumentBuf, Vec<i64>)> = (0..1000)
        .map(|_| {
            let at = [random.within(-180.0, 180.0), random.within(-90.0, 90.0)];
            with_keys(&plane, rawdoc! { "a": [at[0], at[1]] })
        })
        .collect();
    for i in 0..30 {
        let at = rawbson!([random.within(-180.0, 180.0), random.within(-90.0, 90.0)]);
        let operators = match i % 3 {
            0 => rawdoc! { "$near": at },
            1 => {
                rawdoc! { "$near": at, "$minDistance": 5, "$maxDistance": random.within(6.0, 90.0) }
            }
            _ => rawdoc! { "$nearSphere": at, "$minDistance": random.within(0.0, 1.0) },
        };
        check_search(&plane, &operators, &documents);
    }
}

/// Coordinates that lie on meridians, on the equator, at poles and on the antimeridian, and next to
/// these.
fn odd(random: &mut Random) -> At {
    const LNG: [f64; 10] = [
        0.0,
        180.0,
        -180.0,
        90.0,
        -90.0,
        45.0,
        10.0,
        1e-300,
        1e-13,
        179.999_999_999_999,
    ];
    const LAT: [f64; 9] = [
        0.0,
        90.0,
        -90.0,
        45.0,
        -45.0,
        10.0,
        1e-16,
        89.999_999_999_999,
        35.264_389_682_754_654,
    ];
    (LNG[random.below(LNG.len())], LAT[random.below(LAT.len())])
}

/// A geometry of such coordinates, which may be none.
fn odd_value(random: &mut Random) -> RawBson {
    let chain: Vec<At> = (0..2 + random.below(4)).map(|_| odd(random)).collect();
    match random.below(4) {
        0 => geometry("Point", rawbson!([chain[0].0, chain[0].1])),
        1 => {
            let mut ring = chain;
            ring.push(ring[0]);
            geometry("Polygon", rawbson!([odd_positions(&ring)]))
        }
        _ => geometry("LineString", odd_positions(&chain)),
    }
}

fn odd_positions(at: &[At]) -> RawBson {
    let mut array = pinion_bson::RawArrayBuf::new();
    at.iter().for_each(|at| array.push(rawbson!([at.0, at.1])));
    RawBson::Array(array)
}

#[test]
fn odd_geometries_are_found_by_their_keys() {
    let mut random = Random(19);
    let index = rawdoc! { "name": "i", "key": { "a": "2dsphere" } };
    let index = IndexSpec::parse(&index).expect("a specification");
    let geo = index.geo().expect("a geospatial index");
    let documents: Vec<(RawDocumentBuf, Vec<i64>)> = (0..2000)
        .filter_map(|_| {
            let document = rawdoc! { "a": odd_value(&mut random) };
            let keys = cells(&index_keys(&document, &index).ok()?);
            Some((document, keys))
        })
        .collect();
    let mut matched = 0;
    for i in 0..200 {
        let shape = odd_value(&mut random);
        let operators = match i % 3 {
            0 => within(&shape),
            1 => intersects(&shape),
            _ => {
                let center = odd(&mut random);
                let radius = [0.0, 1e-12, 0.1, 1.5, std::f64::consts::FRAC_PI_2][random.below(5)];
                rawdoc! { "$geoWithin": { "$centerSphere": [[center.0, center.1], radius] } }
            }
        };
        let Ok(predicate) = GeoPredicate::parse(&operators) else {
            continue;
        };
        let ranges = geo
            .ranges(&predicate)
            .expect("unbounded")
            .expect("of the sphere");
        for (document, keys) in &documents {
            let value = crate::value::field(document, "a").expect("written");
            if predicate.matches(value).expect("unbounded") {
                assert!(in_ranges(&ranges, keys), "{document:?} {operators:?}");
                matched += 1;
            }
        }
    }
    assert!(documents.len() > 500 && matched > 1000, "{matched}");
}
