//! ICU4X's tables with another direction of the second level than the locale has.
//!
//! ICU4X compares accents from the end where a locale's data says so, as that of Canadian French
//! does, and has no option for it. The direction is one bit of the locale's metadata, which is set
//! here before the collator reads it.

use icu_collator::provider as tables;
use icu_normalizer::provider as normalizer;
use icu_provider::prelude::{DataError, DataPayload, DataProvider, DataRequest, DataResponse};

/// The bit of `CollationMetadata` that says that accents compare from the end.
const BACKWARD_SECOND_LEVEL: u32 = 1 << 7;

/// The compiled tables, with this direction of the second level.
pub(crate) struct Tables {
    pub backwards: bool,
}

impl DataProvider<tables::CollationMetadataV1> for Tables {
    fn load(
        &self,
        request: DataRequest<'_>,
    ) -> Result<DataResponse<tables::CollationMetadataV1>, DataError> {
        let found: DataResponse<tables::CollationMetadataV1> = tables::Baked.load(request)?;
        let mut bits = found.payload.get().bits & !BACKWARD_SECOND_LEVEL;
        if self.backwards {
            bits |= BACKWARD_SECOND_LEVEL;
        }
        Ok(DataResponse {
            metadata: found.metadata,
            payload: DataPayload::from_owned(tables::CollationMetadata { bits }),
        })
    }
}

macro_rules! forward {
    ($($marker:path => $provider:expr;)*) => {
        $(impl DataProvider<$marker> for Tables {
            fn load(&self, request: DataRequest<'_>) -> Result<DataResponse<$marker>, DataError> {
                $provider.load(request)
            }
        })*
    };
}

forward! {
    tables::CollationSpecialPrimariesV1 => tables::Baked;
    tables::CollationRootV1 => tables::Baked;
    tables::CollationTailoringV1 => tables::Baked;
    tables::CollationDiacriticsV1 => tables::Baked;
    tables::CollationJamoV1 => tables::Baked;
    tables::CollationReorderingV1 => tables::Baked;
    normalizer::NormalizerNfdDataV1 => normalizer::Baked;
    normalizer::NormalizerNfdTablesV1 => normalizer::Baked;
}
