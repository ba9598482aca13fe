"""What a snapshot is on disk: files, manifests, anchors, selection and retention."""
