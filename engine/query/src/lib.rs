//! Match, project, update, expressions, pipelines and plans over raw documents.
