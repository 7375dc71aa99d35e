import tseslint from 'typescript-eslint'

export default tseslint.config(
  { ignores: ['dist/', 'node_modules/'] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { project: './tsconfig.json', tsconfigRootDir: import.meta.dirname } },
    rules: {
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      '@typescript-eslint/consistent-type-imports': ['error', { fixStyle: 'inline-type-imports' }],
      // A cancelled or refused call is answered by a frame; `void` marks what is started and not awaited.
      '@typescript-eslint/no-floating-promises': ['error', { ignoreVoid: true }],
      // `node:test` returns promises that its runner awaits.
      '@typescript-eslint/require-await': 'off',
      // A guard that ends a function by a call reads well in one line.
      '@typescript-eslint/no-confusing-void-expression': 'off',
      eqeqeq: 'error',
    },
  },
  {
    files: ['test/**/*.ts'],
    rules: { '@typescript-eslint/no-floating-promises': 'off', '@typescript-eslint/no-non-null-assertion': 'off' },
  },
  { files: ['**/*.mjs'], ...tseslint.configs.disableTypeChecked },
)
