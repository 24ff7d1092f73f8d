-- Names of goods are told apart byte by byte: under the default collation `sku-a` and `SKU-A` were one row of the stock, and two of
-- an order. A column of a foreign key can't be changed, so the key goes first and comes back.

SET @exact_skus = (
    SELECT IF(COUNT(*) > 0,
        'ALTER TABLE inventory_reservations DROP FOREIGN KEY fk_reservations_sku',
        'DO 0')
    FROM information_schema.table_constraints AS fk
    JOIN information_schema.columns AS col
        ON col.table_schema = fk.table_schema AND col.table_name = 'inventory' AND col.column_name = 'sku'
    WHERE fk.table_schema = DATABASE() AND fk.table_name = 'inventory_reservations'
        AND fk.constraint_name = 'fk_reservations_sku' AND col.collation_name <> 'utf8mb4_bin'
);
PREPARE exact_skus FROM @exact_skus;
EXECUTE exact_skus;
DEALLOCATE PREPARE exact_skus;

SET @exact_skus = (
    SELECT IF(COUNT(*) > 0,
        'ALTER TABLE inventory MODIFY COLUMN sku VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL',
        'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'inventory' AND column_name = 'sku' AND collation_name <> 'utf8mb4_bin'
);
PREPARE exact_skus FROM @exact_skus;
EXECUTE exact_skus;
DEALLOCATE PREPARE exact_skus;

SET @exact_skus = (
    SELECT IF(COUNT(*) = 0,
        'ALTER TABLE inventory_reservations MODIFY COLUMN sku VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, ADD CONSTRAINT fk_reservations_sku FOREIGN KEY (sku) REFERENCES inventory (sku)',
        'DO 0')
    FROM information_schema.table_constraints
    WHERE table_schema = DATABASE() AND table_name = 'inventory_reservations' AND constraint_name = 'fk_reservations_sku'
);
PREPARE exact_skus FROM @exact_skus;
EXECUTE exact_skus;
DEALLOCATE PREPARE exact_skus;

SET @exact_skus = (
    SELECT IF(COUNT(*) > 0,
        'ALTER TABLE order_items MODIFY COLUMN sku VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL',
        'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'order_items' AND column_name = 'sku' AND collation_name <> 'utf8mb4_bin'
);
PREPARE exact_skus FROM @exact_skus;
EXECUTE exact_skus;
DEALLOCATE PREPARE exact_skus;
