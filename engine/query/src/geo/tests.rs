//! Geospatial predicates on documents, as MongoDB answers them.

use pinion_bson::{RawBson, RawDocumentBuf, rawbson, rawdoc};

use super::{GeoPredicate, Near};

fn geometry(kind: &str, coordinates: RawBson) -> RawBson {
    RawBson::Document(rawdoc! { "type": kind, "coordinates": coordinates })
}

fn square(low: i32, high: i32) -> RawBson {
    rawbson!([
        [low, low],
        [high, low],
        [high, high],
        [low, high],
        [low, low]
    ])
}

#[track_caller]
fn check(operators: RawDocumentBuf, value: RawBson, expected: bool) {
    let predicate = GeoPredicate::parse(&operators).expect("the operator parses");
    let matched = predicate.matches(value.as_raw_bson_ref());
    assert_eq!(
        matched.expect("unbounded"),
        expected,
        "{operators:?} on {value:?}"
    );
}

#[track_caller]
fn within(shape: RawDocumentBuf, value: RawBson, expected: bool) {
    check(rawdoc! { "$geoWithin": shape }, value, expected);
}

#[track_caller]
fn intersects(geometry: RawBson, value: RawBson, expected: bool) {
    let operators = rawdoc! { "$geoIntersects": { "$geometry": geometry } };
    check(operators, value, expected);
}

#[track_caller]
fn check_error(operators: RawDocumentBuf, code: i32, message: &str) {
    let error = GeoPredicate::parse(&operators).expect_err("refused");
    assert_eq!((error.code.0, error.message.as_str()), (code, message));
}

#[test]
fn within_shapes_of_the_plane() {
    let square = || rawdoc! { "$box": [[10, 10], [0, 0]] };
    within(square(), rawbson!([5, 5]), true);
    within(square(), rawbson!([5, 5, 99]), true);
    within(
        square(),
        RawBson::Document(rawdoc! { "x": 5, "y": 5 }),
        true,
    );
    within(square(), geometry("Point", rawbson!([10, 10])), true);
    within(
        square(),
        geometry("LineString", rawbson!([[1, 1], [5, 5]])),
        false,
    );
    within(square(), rawbson!([f64::NAN, 5]), false);
    within(square(), RawBson::String("x".into()), false);
    within(
        rawdoc! { "$center": [[0, 89], 10] },
        rawbson!([0, 79]),
        true,
    );
    within(
        rawdoc! { "$center": [[0, 89], 10] },
        rawbson!([11, 89]),
        false,
    );
    within(
        rawdoc! { "$polygon": [[0, 0], [10, 10], [10, 0]] },
        rawbson!([5, 1]),
        true,
    );
}

#[test]
fn within_shapes_of_the_sphere() {
    let cap = |radius: f64| rawdoc! { "$centerSphere": [[0, 0], radius] };
    let degree = std::f64::consts::PI / 180.0;
    within(cap(0.0), rawbson!([0, 0]), true);
    within(cap(0.0), rawbson!([0.001, 0]), false);
    within(cap(degree), geometry("Point", rawbson!([1, 0])), true);
    within(cap(degree), rawbson!([2, 0]), false);
    within(
        cap(4.0),
        geometry("LineString", rawbson!([[50, 0], [170, 10]])),
        true,
    );
    within(
        cap(1.0),
        geometry("LineString", rawbson!([[0, 0], [100, 0]])),
        false,
    );
    within(
        cap(1.0),
        geometry("Polygon", rawbson!([square(0, 5)])),
        true,
    );
    within(
        cap(0.01),
        geometry("Polygon", rawbson!([square(-10, 10)])),
        false,
    );
    let polygon = |rings: RawBson| rawdoc! { "$geometry": geometry("Polygon", rings) };
    let donut = || polygon(rawbson!([square(-10, 10), square(-1, 1)]));
    within(donut(), geometry("Point", rawbson!([5, 5])), true);
    within(donut(), geometry("Point", rawbson!([0, 0])), false);
    within(
        donut(),
        geometry("MultiPoint", rawbson!([[5, 5], [0, 0]])),
        false,
    );
    within(
        donut(),
        geometry("LineString", rawbson!([[5, 5], [6, 6]])),
        true,
    );
    within(
        donut(),
        geometry("LineString", rawbson!([[5, 0], [-5, 0]])),
        false,
    );
    // Points of the boundary belong to a polygon.
    within(
        polygon(rawbson!([square(0, 10)])),
        geometry("Point", rawbson!([0, 0])),
        true,
    );
    within(
        polygon(rawbson!([square(0, 10)])),
        geometry("Point", rawbson!([5, 0])),
        true,
    );
    // Edges are great circles: at 45 degrees the middle of this one lies half a degree further
    // north.
    let wide = rawbson!([[[0, 0], [20, 0], [20, 45], [0, 45], [0, 0]]]);
    within(polygon(wide.clone()), rawbson!([10, 45.4]), true);
    within(polygon(wide), rawbson!([10, 45.5]), false);
    let antimeridian = rawbson!([[[178, -2], [-178, -2], [-178, 2], [178, 2], [178, -2]]]);
    within(polygon(antimeridian.clone()), rawbson!([-179, 0]), true);
    within(polygon(antimeridian), rawbson!([0, 0]), false);
    let pole = rawbson!([[[0, 80], [90, 80], [180, 80], [-90, 80], [0, 80]]]);
    within(polygon(pole), rawbson!([45, 89]), true);
}

#[test]
fn strict_winding() {
    let clockwise = rawbson!([[[-10, -10], [-10, 10], [10, 10], [10, -10], [-10, -10]]]);
    let strict = RawBson::Document(rawdoc! {
        "type": "Polygon",
        "coordinates": clockwise,
        "crs": { "type": "name", "properties": { "name": "urn:x-mongodb:crs:strictwinding:EPSG:4326" } },
    });
    within(
        rawdoc! { "$geometry": strict.clone() },
        rawbson!([50, 50]),
        true,
    );
    within(
        rawdoc! { "$geometry": strict.clone() },
        rawbson!([0, 0]),
        false,
    );
    intersects(strict.clone(), geometry("Point", rawbson!([50, 50])), true);
    // As a stored value it matches nothing.
    intersects(geometry("Point", rawbson!([50, 50])), strict, false);
}

#[test]
fn intersections() {
    let polygon = |low: i32, high: i32| geometry("Polygon", rawbson!([square(low, high)]));
    let line =
        |a: [i32; 2], b: [i32; 2]| geometry("LineString", rawbson!([[a[0], a[1]], [b[0], b[1]]]));
    intersects(polygon(0, 10), polygon(0, 10), true);
    intersects(polygon(0, 10), polygon(5, 15), true);
    intersects(polygon(0, 10), polygon(10, 20), false);
    intersects(polygon(0, 10), line([5, 5], [50, 50]), true);
    intersects(polygon(0, 10), line([20, 20], [50, 50]), false);
    intersects(line([-1, -1], [1, 1]), line([-1, 1], [1, -1]), true);
    intersects(
        line([-1, 0], [1, 0]),
        geometry("Point", rawbson!([0, 0])),
        true,
    );
    intersects(
        line([0, 0], [2, 2]),
        geometry("Point", rawbson!([5, 5])),
        false,
    );
    intersects(rawbson!([1, 2]), geometry("Point", rawbson!([1, 2])), true);
    let flat = geometry("Polygon", rawbson!([[[0, 0], [1, 0], [2, 0], [0, 0]]]));
    intersects(flat, geometry("Point", rawbson!([0, 0])), true);
}

#[test]
fn refusals() {
    let within = |shape: RawDocumentBuf| rawdoc! { "$geoWithin": shape };
    check_error(within(rawdoc! {}), 2, "geo query doesn't have any geometry");
    check_error(rawdoc! { "$geoWithin": 1 }, 2, "geometry must be an object");
    check_error(
        rawdoc! { "$geoWithin": { "$box": [[0, 0], [1, 1]] }, "$exists": true },
        2,
        "can't parse extra field: $exists: true",
    );
    check_error(
        within(rawdoc! { "$center": [[0, 0], -1] }),
        2,
        "Radius must be a non-negative number: -1",
    );
    check_error(
        within(rawdoc! { "$geometry": { "type": "point" } }),
        2,
        "unknown GeoJSON type: { type: \"point\" }",
    );
    check_error(
        within(rawdoc! { "$centerSphere": [[181, 0], 1] }),
        2,
        "longitude/latitude is out of bounds, lng: 181 lat: 0",
    );
    check_error(
        within(rawdoc! { "$geometry": geometry("Point", rawbson!([0, 0])) }),
        2,
        "$within not supported with provided geometry: { $geoWithin: { $geometry: { type: \"Point\", coordinates: [ 0, 0 ] } } }",
    );
    check_error(
        within(
            rawdoc! { "$geometry": geometry("Polygon", rawbson!([[[0, 0], [1, 0], [1, 1], [0, 1]]])) },
        ),
        2,
        "Loop is not closed: [ [ 0, 0 ], [ 1, 0 ], [ 1, 1 ], [ 0, 1 ] ]",
    );
    let outside = rawbson!([square(-1, 1), square(50, 51)]);
    let error = GeoPredicate::parse(&within(
        rawdoc! { "$geometry": geometry("Polygon", outside) },
    ))
    .expect_err("refused");
    assert!(
        error
            .message
            .starts_with("Secondary loops not contained by first exterior loop")
    );
    let touching = rawbson!([
        [[0, 0], [5, 0], [5, 5], [0, 5], [0, 0]],
        [[0, 0], [0, 2], [2, 2], [2, 0], [0, 0]]
    ]);
    GeoPredicate::parse(&within(
        rawdoc! { "$geometry": geometry("Polygon", touching) },
    ))
    .expect_err("the hole lies on the shell");
}

#[test]
fn near() {
    let parse = |operators: RawDocumentBuf| Near::parse(&operators);
    let point = || geometry("Point", rawbson!([0, 0]));
    let near = parse(rawdoc! { "$near": { "$geometry": point(), "$maxDistance": 100 } })
        .expect("the operator parses");
    assert!(near.spherical && near.wrapping && near.max == 100.0);
    let near = parse(rawdoc! { "$nearSphere": [0, 0], "$maxDistance": 1 }).expect("parses");
    assert!(near.spherical && !near.wrapping && near.max == 6_378_100.0);
    let near = parse(rawdoc! { "$near": [0, 0] }).expect("parses");
    assert!(!near.spherical);
    let path = crate::path::Path::parse("a");
    let document = rawdoc! { "a": [[3, 4], [0, 2]] };
    let found = near.document_distance(&document, &path).expect("unbounded");
    assert_eq!(found.map(|(distance, _)| distance), Some(2.0));
    let check = |operators: RawDocumentBuf, code: i32| {
        let error = parse(operators).expect_err("refused");
        assert_eq!(error.code.0, code, "{}", error.message);
    };
    check(rawdoc! { "$near": [0, 0], "$maxDistance": "x" }, 16895);
    check(rawdoc! { "$near": [0, 0], "$minDistance": -1 }, 16894);
    check(rawdoc! { "$near": [] }, 2);
    check(rawdoc! { "$near": { "$geometry": [0, 0] } }, 16681);
    check(
        rawdoc! { "$near": { "$geometry": { "type": "X", "coordinates": [0, 0] } } },
        2,
    );
    check(
        rawdoc! { "$near": { "$geometry": point(), "$minDistance": f64::INFINITY } },
        2,
    );
    check(rawdoc! { "$nearSphere": [200, 0] }, 2);
}
